"""Checks of the area storage, and of the folders that a live host can show: model folder, build locks."""

from __future__ import annotations

import posixpath

from doctor.checks.registry import check, found
from doctor.checks.words import size
from doctor.facts import Mount
from doctor.finding import Confidence, Evidence, Finding, Remedy, Risk, Severity, Skipped
from doctor.snapshot import Snapshot

MIB, GIB = 1 << 20, 1 << 30
#: Less than this is full: one compiled kernel or one config file does not fit.
FULL_BYTES = 16 * MIB
#: Less than this is worth a word: compiled graphs and kernels of one model take hundreds of MiB.
LOW_BYTES = 2 * GIB
#: Caches without which vLLM does not start; the others are needed by some models or for downloads only.
REQUIRED = ("vllm cache", "triton cache", "tmp")


def _written(s: Snapshot) -> list[Mount]:
    """Places vLLM writes to that could be examined."""
    places = (s.storage.mounts if s.storage else None) or ()
    return [m for m in places if m.role != "model" and m.error is None]


def _evidence(place: Mount) -> Evidence:
    state = [f"{size(place.free_bytes)} free" if place.free_bytes is not None else "room not known"]
    if place.inodes_free is not None:
        state.append(f"{place.inodes_free:,} inodes free")
    if place.fstype:
        state.append(place.fstype)
    return Evidence(f"storage.mounts ({place.role})", f"{place.path}: {', '.join(state)}", "statvfs")


@check("disk-full", needs=("storage",))
def disk_full(s: Snapshot) -> Finding | Skipped | None:
    """The file system of a cache or of the temporary folder is full.

    Signals: no inode or less than 16 MiB free where something is written (proven); less than 2 GiB, or in the
    model cache less than the model that is still to come (hints).
    Source: statvfs of each place, or of the nearest folder above that exists.
    """
    places = [m for m in _written(s) if m.free_bytes is not None and m.total_bytes and not m.read_only]
    if not places:
        return Skipped("disk-full", "the room at the caches is not known")
    full = [m for m in places if (m.free_bytes or 0) < FULL_BYTES or m.inodes_free == 0]
    low = [m for m in places if m not in full and (m.free_bytes or 0) < LOW_BYTES]
    if not full and not low:
        return None
    worst = (full or low)[0]
    others = sorted({m.role for m in full or low} - {worst.role})
    also = f" (also: {', '.join(others)})" if others else ""
    what = "no inode" if worst.inodes_free == 0 else size(worst.free_bytes or 0)
    summary = f"{what[0].upper()}{what[1:]} free at {worst.path}, the {worst.role}{also}."
    fixes = (
        Remedy(
            "See what takes the room",
            automatic=True,
            commands=(("df", "-h", _existing(worst)), ("df", "-i", _existing(worst))),
            risk=Risk.SAFE,
        ),
        Remedy("Remove models and images that are no longer used, or point the cache to a file system with room"),
    )
    sure = Confidence.PROVEN if full else Confidence.HINT
    return found("disk-full", sure, summary, [_evidence(m) for m in full or low], fixes=fixes)


def _existing(place: Mount) -> str:
    return place.path if place.exists else posixpath.dirname(place.path)


@check("cache-folder-not-writable", needs=("storage",))
def cache_folder_not_writable(s: Snapshot) -> Finding | Skipped | None:
    """This user cannot write a cache folder, or cannot make it.

    Signals: access(2) refuses the folder, or the nearest one above it that exists (proven). A blocker for the
    caches that every start writes; elsewhere it degrades, because some models never use them.
    """
    cause = "cache-folder-not-writable"
    known = [m for m in _written(s) if m.writable is not None]
    if not known:
        return Skipped(cause, "it is not known whether the caches can be written")
    refused = [m for m in known if not m.writable]
    if s.storage and (s.storage.hf_offline or (s.storage.model_exists and not s.storage.model_is_hub_name)):
        refused = [m for m in refused if m.role != "model cache"]  # only read then, if at all
    if not refused:
        return None
    required = [m for m in refused if m.role in REQUIRED]
    worst = (required or refused)[0]
    others = [m.role for m in refused if m is not worst]
    why = "is on a read-only file system" if worst.read_only else "cannot be written by this user"
    verb = why if worst.exists else why.replace("cannot be written", "cannot be made")
    also = f" (also: {', '.join(others)})" if others else ""
    summary = f"{worst.path}, the {worst.role}, {verb}{also}."
    evidence = [Evidence(f"storage.mounts ({m.role})", f"{m.path}: not writable", "access") for m in refused]
    uid = s.system.uid if s.system else None
    owner = str(uid) if uid is not None else "$(id -u)"
    fixes = []
    if worst.exists and not worst.read_only and uid:
        fixes.append(
            Remedy(
                "Give the folder to this user",
                commands=(("sudo", "chown", "-R", owner, worst.path),),
                verify=(f"touch {worst.path}/.probe && rm {worst.path}/.probe",),
            )
        )
    fixes.append(Remedy(f"Or set {_VARIABLES.get(worst.role, 'HOME')} to a folder that can be written"))
    severity = None if required else Severity.DEGRADES
    return found(cause, Confidence.PROVEN, summary, evidence, severity=severity, fixes=fixes)


_VARIABLES = {
    "model cache": "HF_HOME",
    "vllm cache": "VLLM_CACHE_ROOT",
    "triton cache": "TRITON_CACHE_DIR",
    "torchinductor cache": "TORCHINDUCTOR_CACHE_DIR",
    "torch extensions": "TORCH_EXTENSIONS_DIR",
    "flashinfer cache": "FLASHINFER_WORKSPACE_BASE",
    "tmp": "TMPDIR",
}


@check("mount-not-answering", needs=("storage",))
def mount_not_answering(s: Snapshot) -> Finding | Skipped | None:
    """A file system that vLLM needs does not answer.

    Signals: a question about the folder was not answered within the probe's deadline (likely: it may only be
    slow).
    """
    cause = "mount-not-answering"
    if s.storage is None or s.storage.mounts is None:
        return Skipped(cause, "the caches were not looked at")
    dead = [m for m in s.storage.mounts if m.error and "does not answer" in m.error]
    if not dead:
        return None
    summary = f"{dead[0].path}, the {dead[0].role}, {dead[0].error}."
    evidence = [Evidence(f"storage.mounts ({m.role})", f"{m.path}: {m.error}", "stat and statvfs") for m in dead]
    fix = Remedy(
        "Bring the server back, or unmount and mount again; or point the cache elsewhere",
        verify=(f"timeout 5 stat {dead[0].path}",),
    )
    return found(cause, Confidence.LIKELY, summary, evidence, fixes=(fix,))


@check("model-path-invalid", needs=("storage",))
def model_path_invalid(s: Snapshot) -> Finding | Skipped | None:
    """The model folder does not exist or has no usable config.json.

    Signals: the path given with --model is not there, or has neither config.json nor a format that carries its
    own configuration (proven). A hub name that is not in the cache is no finding.
    """
    cause = "model-path-invalid"
    facts = s.storage
    if facts is None or facts.model_path is None:
        return Skipped(cause, "no model was named (give --model)")
    inside = " in this container" if s.in_container else ""
    if facts.model_exists is False:
        summary = f"{facts.model_path} does not exist{inside}; vLLM would take it for a name on the hub."
        fix = Remedy("Check the path as the serving process sees it", verify=(f"ls -l {facts.model_path}",))
        evidence = [s.evidence("storage.model_path"), s.evidence("storage.model_exists")]
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=(fix,))
    if facts.model_has_config is False:
        folder = facts.model_folder or facts.model_path
        summary = f"{folder} has no config.json that can be read."
        evidence = [s.evidence("storage.model_path"), s.evidence("storage.model_has_config")]
        fix = Remedy("Name the folder that holds config.json, or download the model again")
        return found(cause, Confidence.PROVEN, summary, evidence, fixes=(fix,))
    if facts.model_exists is None and not facts.model_is_hub_name:
        return Skipped(cause, "the model folder could not be looked at")
    return None


@check("model-files-incomplete", needs=("storage",))
def model_files_incomplete(s: Snapshot) -> Finding | Skipped | None:
    """Weights files of the model folder are missing, cut off, or Git LFS pointers.

    Signals: a shard that the index names and the folder lacks; a file shorter than its own safetensors header
    says, empty, or a pointer (proven).
    """
    cause = "model-files-incomplete"
    facts = s.storage
    if facts is None or facts.model_path is None:
        return Skipped(cause, "no model was named (give --model)")
    bad = [*(f"{n}: missing" for n in facts.model_missing_files or ()), *(facts.model_bad_files or ())]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        summary = f"{facts.model_folder or facts.model_path} is not complete: {bad[0]}{more}."
        evidence = [Evidence("storage.model_files", text, "model folder") for text in bad[:8]]
        return found(cause, Confidence.PROVEN, summary, evidence)
    if facts.model_bad_files is None and facts.model_missing_files is None:
        return Skipped(cause, "no weights were found to look at")
    return None


@check("flashqla-stale-build-lock", needs=("storage",))
def stale_build_lock(s: Snapshot) -> Finding | Skipped | None:
    """A lock file of an interrupted extension build makes the next start wait for ever.

    Signals: a lock in the build folder, older than five minutes, with no compiler or ninja running. Proven in
    the folder of FlashQLA's kernel; likely for another extension, or in a container, where a build outside
    cannot be seen.
    Source: torch/utils/file_baton.py waits as long as the file is there.
    """
    cause = "flashqla-stale-build-lock"
    locks = s.storage.stale_locks if s.storage else None
    if locks is None:
        return Skipped(cause, "build folders were not looked at")
    if not locks:
        return None
    own = [p for p in locks if "flash_qla" in p.lower()]
    worst = (own or list(locks))[0]
    sure = Confidence.PROVEN if own and not s.in_container else Confidence.LIKELY
    extension = posixpath.basename(posixpath.dirname(worst))
    more = f" and {len(locks) - 1} more" if len(locks) > 1 else ""
    summary = f"{worst}{more} was left by an interrupted build of {extension}; the next start waits for it."
    fix = Remedy(
        "Move the lock aside while nothing builds, then start again",
        automatic=True,
        commands=tuple(("mv", "--", p, f"{p}.stale") for p in locks),
        risk=Risk.SAFE,
        verify=(f"test ! -e {worst}",),
    )
    rebuild = Remedy(
        "If the .so beside it is missing too: move the whole folder aside, so that it is built afresh"
    )
    return found(cause, sure, summary, [s.evidence("storage.stale_locks")], fixes=(fix, rebuild))
