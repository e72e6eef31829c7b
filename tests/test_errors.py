"""What libraries say of a refusal, in the system's own words."""

import errno
import os

from neubay.errors import reason


def test_the_systems_reason_is_found_in_what_libraries_say() -> None:
    hdf5 = OSError(
        "[Errno 28] Unable to synchronously create file (file write failed: time = Tue\n, filename "
        "= 'x.hdf5', errno = 28, error message = 'No space left on device', buf = 0x560db2accaf8)"
    )
    assert reason(hdf5) == "No space left on device"
    assert reason(OSError(errno.EACCES, os.strerror(errno.EACCES))) == "Permission denied"
    assert "992 of 20000 values" in reason(OSError("20000 requested and 992 written"))
    assert reason(OSError("two\n  lines")) == "two lines" and reason(OSError()) == "OSError"
