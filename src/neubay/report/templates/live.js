// Draws the page anew from where it came from, and leaves alone what has not changed: what a reader
// has opened stays open, and neither the place on the page nor the focus is lost.
const every = 1000 * Number(document.documentElement.dataset.refresh);
const name = details => details.querySelector("summary").firstChild.textContent;

function renew(old, fresh) {
  const before = [...old.children], after = [...fresh.children];
  const alike = before.length === after.length
    && before.every((part, place) => part.tagName === after[place].tagName);
  if (alike) {
    before.forEach((part, place) => {
      if (part.innerHTML !== after[place].innerHTML) {
        part.className = after[place].className;
        part.replaceChildren(...after[place].childNodes);
      }
    });
    return;
  }
  const opened = new Set([...old.querySelectorAll("details[open]")].map(name));
  const focused = old.contains(document.activeElement) && document.activeElement.closest("details");
  const focus = focused ? name(focused) : null;
  old.replaceChildren(...after);
  for (const details of old.querySelectorAll("details")) {
    details.open = opened.has(name(details));
    if (name(details) === focus) {
      details.querySelector("summary").focus({ preventScroll: true });
    }
  }
}

async function again() {
  let goes_on = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok) {
      for (const part of ["header.top", "main"]) {
        renew(document.querySelector(part), fresh.querySelector(part));
      }
      document.title = fresh.title;
      goes_on = "refresh" in fresh.documentElement.dataset;
    }
  } catch {
    // The server does not answer; it may again.
  }
  if (goes_on) setTimeout(again, every);
}
setTimeout(again, every);
