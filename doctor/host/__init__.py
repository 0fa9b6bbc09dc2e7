"""Reading a host: one access object (`Host`) and one probe module a domain. Probes never judge."""

from doctor.host.access import Host, LocalHost, RunResult

__all__ = ["Host", "LocalHost", "RunResult"]
