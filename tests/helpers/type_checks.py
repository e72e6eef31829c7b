"""Types checked at run time: shapes by jaxtyping, and by beartype alone where there are none."""

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, install_import_hook, jaxtyped

_CHECK = beartype(conf=BeartypeConf(violation_type=TypeCheckError))


def check_types_of(package: str) -> None:
    """Check every function of a package, which has not been imported yet, whenever it is called.

    jaxtyping's hook decorates each with `jaxtyping.jaxtyped`, which opens a scope for the names of
    axes at every call. That takes ten times as long as the checks of most functions, so those that
    name no axis are left to the type checker itself.
    """
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]
    install_import_hook(package, "beartype.beartype")


def _checked(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    if function is None:
        return partial(_checked, typechecker=typechecker)
    if inspect.isfunction(function) and not any(
        map(_may_have_shape, function.__annotations__.values())
    ):
        return _CHECK(function)
    return jaxtyped(function, typechecker=typechecker)


def _may_have_shape(annotation: Any) -> bool:
    """Whether a type says something of an array's axes, or is a text that might."""
    if isinstance(annotation, str | typing.ForwardRef):
        return True
    if isinstance(annotation, list | tuple):  # the parameters of a `Callable`
        return any(map(_may_have_shape, annotation))
    if isinstance(annotation, typing.TypeVar):
        return any(map(_may_have_shape, (annotation.__bound__, *annotation.__constraints__)))
    if "jaxtyping" in (getattr(annotation, "__module__", None) or ""):
        return True
    return any(map(_may_have_shape, typing.get_args(annotation)))
