"""One build from the facts of the machine to the image, or to the causes that stop it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from doctor import files
from doctor.checks.registry import Judgement, found, judge
from doctor.errors import DoctorError
from doctor.evidence import read_evidence
from doctor.finding import Confidence, Evidence, Finding, Severity, Verdict
from doctor.host import Host
from doctor.image import archive, builder, context, engine, pins, plan, preflight, runline, sbom
from doctor.image.archive import Saved
from doctor.image.builder import Command, Ended, Settings
from doctor.image.engine import Engine
from doctor.image.plan import Plan, Wish
from doctor.image.runline import RunLines
from doctor.snapshot import ProbeStatus, Snapshot

#: Variables that name the CA bundle which pip or uv trust here, in pip's own order.
CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
#: The value of --ca that hands no bundle to the build.
NO_CA = "none"
#: Causes of these areas end a build although elsewhere they are only notes.
_AREAS = ("image", "container", "network", "storage", "host")
_INSPECT_S = 30.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class BuildOptions:
    """The command line. ``wheels``: folder for a build without an index; ``ca``: bundle, NO_CA or None."""

    base: str | None = None
    target: str | None = None
    tag: str | None = None
    engine: str | None = None
    wheels: Path | None = None
    ca: str | None = None
    network: str | None = None
    no_cache: bool = False
    ignore_hardware: bool = False
    ignore_room: bool = False
    sbom: Path | None = None
    save: Path | None = None

    @property
    def wish(self) -> Wish:
        """What concerns the plan."""
        return Wish(self.target, self.base, None, self.tag, self.ignore_hardware)


@dataclass
class BuildResult:
    """Everything that was decided, tried and seen. ``image_bytes`` is what the engine counts."""

    snapshot: Snapshot
    engine: Engine | None = None
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    command: Command | None = None
    ended: Ended | None = None
    log: Path | None = None
    image_id: str | None = None
    image_bytes: int | None = None
    lines: RunLines | None = None
    sbom: Path | None = None
    saved: Saved | None = None

    @property
    def judgement(self) -> Judgement:
        """Verdict and findings by the contract of every command: an image was made, or nothing was."""
        verdict = Verdict.READY if self.image_id else Verdict.BLOCKED
        return Judgement(verdict, tuple(self.findings), (), ())


def examine(host: Host, on_done: Callable[[ProbeStatus], None]) -> Snapshot:
    """The facts of this machine that a build is planned from."""
    return preflight.look(host, on_done)


def run_build(options: BuildOptions, s: Snapshot, host: Host, say: Say, *, apart_s: float) -> BuildResult:
    """Plans, checks and builds. Raises DoctorError for misuse; what stops the build is in ``findings``."""
    if options.target is not None:
        pins.load().target(options.target)  # a slip of the pen is said before anything else
    result = BuildResult(s)
    for option, path in (("--sbom", options.sbom), ("--save", options.save)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise DoctorError(
                f"{option} {path}: {'that is a folder' if path.is_dir() else 'its folder is missing'}"
            )
    chosen = engine.find(host, options.engine)
    if isinstance(chosen, Finding):
        result.findings.append(chosen)
        return result
    result.engine = chosen
    if chosen.kind == "docker" and not preflight.elsewhere(s, chosen):
        result.findings += preflight.daemon(s)
        if result.findings:
            return result
    result.plan = make_plan(options, s, host, chosen, say)
    result.notes += result.plan.notes
    result.findings += result.plan.refusals
    before = preflight.inspect(s, chosen, host, result.plan.target, ignore_room=options.ignore_room)
    result.findings += before.findings
    result.notes += before.notes
    wheels = _wheels(options, result.plan)
    ca, note = trusted(options.ca, host.env, offline=wheels is not None)
    names = builder.proxies(host.env)
    result.notes += [n for n in (note, _proxy_note(host.env, names, options.network)) if n]
    if result.findings:
        return result
    settings = Settings(ca, options.network, options.no_cache, names)
    with context.staged(_root(), wheels, say) as folder:
        _build(result, folder, settings, host, say, apart_s)
    if result.image_id:
        _hand_on(result, options, say)
    return result


def _hand_on(result: BuildResult, options: BuildOptions, say: Say) -> None:
    """The bill of materials and the archive of an image that was made."""
    assert result.plan is not None and result.engine is not None  # noqa: S101, PT018  run_build has both
    client = [result.engine.path]
    host = preflight.environment(result.snapshot, result.engine).get("DOCKER_HOST")
    if host:
        client += ["-H", host]
    if options.sbom is not None:
        files.write(options.sbom.absolute(), sbom.of_image(client, result.plan.tag))
        result.sbom = options.sbom
    if options.save is not None:
        result.saved = archive.save(client, result.plan.tag, options.save, say)


def make_plan(options: BuildOptions, s: Snapshot, host: Host, chosen: Engine | None, say: Say) -> Plan:
    """The plan; asks a base of the user's for its distribution when no target is named."""
    known = pins.load()
    wish = options.wish
    if chosen is not None and preflight.elsewhere(s, chosen):
        wish = replace(wish, ignore_hardware=True)
    if wish.base is not None and wish.target is None and chosen is not None:
        say(f"asking {wish.base} for its distribution")
        environment = preflight.environment(s, chosen)
        wish = replace(wish, distribution=engine.distribution(host, chosen, wish.base, environment))
    return plan.make(s, known, wish, context.revision(host, known.root))


def _root() -> Path:
    return pins.docker_folder().parent


def dockerfile(target: pins.Target) -> str:
    """The text of the target's Dockerfile."""
    path = _root() / target.dockerfile
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from None


def _wheels(options: BuildOptions, chosen: Plan) -> context.Wheels | None:
    return context.wheels_for(options.wheels, chosen.target, _root()) if options.wheels is not None else None


def trusted(asked: str | None, env: Mapping[str, str], *, offline: bool) -> tuple[Path | None, str | None]:
    """The CA bundle for pip inside the build, and a sentence when nobody asked for it by name.

    A company network whose certificates this machine trusts by a variable would refuse the build without it.
    """
    if asked == NO_CA:
        return None, None
    if asked is not None:
        path = Path(asked)
        if not _is_bundle(path):
            raise DoctorError(f"--ca {asked}: not a readable file with certificates in PEM form")
        return path.absolute(), None
    if offline:
        return None, None
    for name in CA_VARIABLES:
        path = Path(env.get(name) or "/nonexistent")
        if _is_bundle(path):
            return path.absolute(), f"pip in the build trusts {path}, by ${name}; --ca {NO_CA} leaves it out"
    return None, None


def _is_bundle(path: Path) -> bool:
    try:
        return path.is_file() and b"-----BEGIN CERTIFICATE-----" in path.read_bytes()
    except OSError:
        return False


def _proxy_note(env: Mapping[str, str], names: tuple[str, ...], network: str | None) -> str | None:
    """A proxy on the loopback of this machine is another machine's inside the build."""
    local = [
        n for n in names if any(h in env[n] for h in ("//127.", "//localhost", "//[::1]", "@127.", "@localhost"))
    ]
    if not local or network == "host":
        return None
    return f"${local[0]} names this machine's loopback, which a build does not reach: add --network host"


def _build(result: BuildResult, folder: Path, settings: Settings, host: Host, say: Say, apart_s: float) -> None:
    assert result.plan is not None and result.engine is not None  # noqa: S101, PT018  run_build has both
    text = dockerfile(result.plan.target)
    what = builder.command(result.plan, result.engine, str(folder), text, settings)
    environment = preflight.environment(result.snapshot, result.engine)
    what = result.command = replace(what, env=environment)
    number, name = tempfile.mkstemp(prefix="vllm-doctor-build-", suffix=".log")
    os.close(number)
    log = Path(name)
    keep = False
    try:
        steps = builder.steps_of(text, result.engine)
        ended = result.ended = builder.build(what, host.env, log, steps, say, apart_s=apart_s)
        if ended.code == 0:
            _inspect(result, host, environment)
        if not result.image_id:
            keep, result.log = True, log
            result.findings += failure(ended, log)
    finally:
        if not keep:
            log.unlink(missing_ok=True)


def _inspect(result: BuildResult, host: Host, environment: Mapping[str, str]) -> None:
    assert result.plan is not None and result.engine is not None  # noqa: S101, PT018  run_build has both
    argv = [result.engine.path, "image", "inspect", result.plan.tag]
    answer = host.run(argv, timeout=_INSPECT_S, env=environment)
    try:
        entry = json.loads(answer.stdout)[0]
        result.image_id = str(entry["Id"])
        result.image_bytes = int(entry["Size"])
    except (ValueError, LookupError, TypeError):
        return
    remote = preflight.elsewhere(result.snapshot, result.engine)
    model = pins.load().model
    served = model.id if model is not None else "MODEL"
    result.lines = runline.lines(result.snapshot, result.engine, result.plan.tag, served, remote=remote)


def failure(ended: Ended, log: Path) -> list[Finding]:
    """The causes that the output shows, the end of the build folded under the first of them."""
    if ended.code == 0:
        text = "the build command ended well and the engine does not show the image"
    else:
        where = f"{ended.step} failed" if ended.step else f"the build command ended with code {ended.code}"
        text = f"{where}: {ended.error}" if ended.error else where
    evidence = [
        Evidence("build.exit", str(ended.code), "the engine's build command"),
        Evidence("build.step", ended.step or "none had begun", str(log)),
        Evidence("build.error", ended.error or "no message", str(log)),
    ]
    stopped = found("image-build-failed", Confidence.PROVEN, text, evidence)
    seen = judge(read_evidence([str(log)]).snapshot).findings
    causes = [
        replace(f, severity=Severity.BLOCKER)
        for f in seen
        if f.blocks or (f.area in _AREAS and f.confidence is not Confidence.HINT)
    ]
    if not causes:
        return [stopped]
    first = causes[0]
    return [replace(first, symptoms=(*first.symptoms, stopped)), *causes[1:]]
