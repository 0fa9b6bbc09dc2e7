"""Checks of the area: network."""

from __future__ import annotations

from doctor.checks.registry import check, found
from doctor.finding import Confidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

#: Families that the hub gives out only after their licence was accepted. Not complete: others pass unseen.
GATED = ("meta-llama/", "google/gemma-2", "google/gemma-3")


@check("hub-name-resolution-failed", needs=("network",))
def hub_name_resolution_failed(s: Snapshot) -> Finding | Skipped | None:
    """The name of the model hub does not resolve.

    Signals: name resolution fails. Proven for a model given by its hub name that is not on this machine; without
    a model named it degrades only, because a local folder needs no hub. No finding in offline mode, with a local
    model, or behind a proxy, which resolves names itself. Name servers that do not answer in time are a hint.
    """
    cause = "hub-name-resolution-failed"
    network, storage = s.network, s.storage
    assert network is not None  # noqa: S101  needs=
    if storage is not None and (storage.hf_offline or storage.model_exists):
        return None  # the hub is not needed
    if any(network.proxies.get(scheme) for scheme in ("https", "all")):
        return None
    if network.hub_resolves:
        return None
    if network.hub_resolves is None and not network.hub_error:
        return Skipped(cause, "the hub's name was not looked up")
    evidence = [s.evidence("network.hub_endpoint"), s.evidence("network.hub_error")]
    wanted = storage is not None and storage.model_is_hub_name
    summary = f"{network.hub_endpoint or 'The hub'} cannot be reached by name: {network.hub_error or 'no answer'}"
    fixes = (
        Remedy("Serve a local folder and set HF_HUB_OFFLINE=1 where vLLM is started", True, risk=Risk.SAFE),
        _dns(s),
    )
    if network.hub_resolves is None:
        return found(cause, Confidence.HINT, summary + ".", evidence, severity=Severity.DEGRADES, fixes=fixes)
    if wanted:
        text = f"{summary}, and {storage.model_path if storage else 'the model'} is not on this machine."
        return found(cause, Confidence.PROVEN, text, evidence, fixes=fixes)
    text = f"{summary}; only a model that lies on this machine can be served."
    return found(cause, Confidence.LIKELY, text, evidence, severity=Severity.DEGRADES, fixes=fixes)


def _dns(s: Snapshot) -> Remedy:
    if s.in_container:
        return Remedy("Repair name resolution: dns of the docker daemon, or --dns of the container")
    if s.is_wsl:
        return Remedy("Repair name resolution: /etc/resolv.conf, [network] generateResolvConf in /etc/wsl.conf")
    return Remedy("Repair name resolution", verify=("getent hosts huggingface.co",))


@check("hub-access-denied", needs=("storage",))
def hub_access_denied(s: Snapshot) -> Finding | Skipped | None:
    """The model is of a gated family and there is no token.

    Signals (a hint; the answer of the hub would prove it): the name of the model. A missing token alone is no
    finding: most models need none.
    """
    cause = "hub-access-denied"
    storage = s.storage
    assert storage is not None  # noqa: S101  needs=
    if storage.model_path is None:
        return Skipped(cause, "no model was named (give --model)")
    if not storage.model_is_hub_name or storage.model_exists:
        return None
    if storage.hf_token_present is None:
        return Skipped(cause, "it is not known whether there is a token")
    if storage.hf_token_present or not storage.model_path.lower().startswith(GATED):
        return None
    summary = f"{storage.model_path} is of a family that needs an accepted licence, and no token was found."
    evidence = [s.evidence("storage.model_path"), s.evidence("storage.hf_token_present")]
    fix = Remedy(
        f"Accept the licence at https://huggingface.co/{storage.model_path}, then log in",
        commands=(("hf", "auth", "login"),),
        verify=("hf auth whoami",),
    )
    return found(cause, Confidence.HINT, summary, evidence, fixes=(fix,))
