"""Is the wall clock wrong? Judged from local signs alone: the hardware clock and the age of files."""

from __future__ import annotations

from doctor.host.access import Host
from doctor.host.parts import Read, number

#: Files that were written in the past for certain; a wall clock before their time is behind.
PAST = (
    "/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/var/lib/pacman/local", "/etc/ld.so.cache",
    "/etc/resolv.conf", "/var/log/wtmp", "/etc/passwd",
)  # fmt: skip
RTC = "/sys/class/rtc/rtc0/since_epoch"
#: A hardware clock read is exact to a second; two minutes leave room for drift.
TOLERANCE_S = 120.0
#: A hardware clock that keeps local time differs by a time zone: quarters of an hour, 14 hours at most.
_QUARTER_S, _ZONE_MAX_S = 900.0, 14 * 3600.0


def clock_skew(host: Host) -> dict[str, Read]:
    """``clock_skew_s``: wall clock minus a trusted one; left out when nothing trustworthy disagrees or agrees.

    Only a clock that is *behind* can be told: a hardware clock with an empty battery is behind itself, so
    a wall clock ahead of it may be right.
    """
    now = host.time()
    newest, path = max(((_mtime(host, p), p) for p in PAST), default=(0.0, ""))
    if newest > now + TOLERANCE_S:
        return {"clock_skew_s": Read(round(now - newest, 1), f"mtime of {path}")}
    rtc = number(host.read(RTC, 64))
    if rtc is None:
        return {}
    skew = now - rtc
    if abs(skew) <= TOLERANCE_S:
        return {"clock_skew_s": Read(round(skew, 1), RTC)}
    off_quarter = abs((skew + _QUARTER_S / 2) % _QUARTER_S - _QUARTER_S / 2)
    if skew > 0 or (abs(skew) <= _ZONE_MAX_S + TOLERANCE_S and off_quarter <= TOLERANCE_S):
        return {}
    return {"clock_skew_s": Read(round(skew, 1), RTC)}


def _mtime(host: Host, path: str) -> float:
    state = host.stat(path)
    return state.st_mtime if state else 0.0
