"""Evidence of the area python: what the loader, pip, transformers and vLLM's imports said."""

from __future__ import annotations

import re

from doctor import catalogue
from doctor.checks.evidence.common import HINT, LIKELY, PROVEN, events, first, has, near, rule, say, together
from doctor.checks.evidence.remedies import older_transformers, same_release, upgrade_vllm
from doctor.checks.registry import Result
from doctor.finding import Remedy, Risk
from doctor.snapshot import Event, Snapshot

#: Model families newer than most installations: a name of theirs that is missing means "too old".
_NEW_MODELS = re.compile(
    r"qwen3|qwen4|gemma-?[34]|glm-?[45]|llama-?4|mistral-?3|ministral|gpt_?oss|deepseek_?v[34]|phi-?4|kimi|minimax|nemotron|"
    r"granite|ernie|hunyuan|olmo-?[23]|smollm3|step3|mimo|aimv2|qwen2_5|qwen2_?vl|internvl|seed_oss|lfm2|falcon_?h1",
    re.I,
)
#: Attributes that transformers 5 took away from tokenizers and configurations, read by vLLM before 0.12.
_REMOVED_IN_5 = re.compile(
    r"^(?:all_special_tokens_extended|special_tokens_map_extended|additional_special_tokens\w*|batch_encode_plus|encode_plus|"
    r"build_inputs_with_special_tokens|prepare_for_model|_convert_token_to_id_with_added_voc)$"
)


#: A mangled name in one of torch's namespaces, or a function of its stable C interface.
_TORCH_SYMBOL = re.compile(r"_Z(?:T[IVSTW])?N?[KVr]*(?:2at|3c10|5torch|6caffe2)|aoti_torch_|torch_")


def _major(text: str | None) -> int | None:
    found = re.match(r"(\d+)", text or "")
    return int(found[1]) if found else None


@rule("transformers-too-old-for-model")
def transformers_old(s: Snapshot) -> Result:
    """transformers or vLLM does not know the model type, and says so (proven)."""
    cause = "transformers-too-old-for-model"
    for event in events(s, "python.model-type"):
        kind = event.values.get("type")
        if "KeyError" in event.text:
            frame = near(s, event, {"python.transformers-frame"}, before=12, after=2)
            sure = together(s, event, frame) if kind else LIKELY
            return say(cause, sure, f"the model type {kind} is not in the registry of what is installed", event)
        version = _vllm(s)
        what = f"vLLM {version} and its transformers do" if version else "what is installed does"
        return say(
            cause,
            PROVEN,
            f"{what} not know the model type {kind or 'of this model'}",
            event,
            fixes=upgrade_vllm(cause),
        )
    for event in events(s, "python.key-error"):
        frame = near(s, event, {"python.transformers-frame"}, before=12, after=2)
        if frame:
            text = f"the model type {event.values['type']} is not in the registry of what is installed"
            return say(cause, together(s, event, frame), text, event, frame)
    for event in events(s, "python.transformers-import"):
        name = event.values["name"]
        installed = _major(s.python.transformers if s.python else None)
        if _NEW_MODELS.search(name) and (installed is None or installed < 5):
            return say(cause, LIKELY, f"the installed transformers has no {name}", event)
    return _pip_says(s, cause, "old")


@rule("transformers-too-new-for-vllm")
def transformers_new(s: Snapshot) -> Result:
    """vLLM read something that a major release of transformers took away (proven; else likely, a hint)."""
    cause = "transformers-too-new-for-vllm"
    installed = _major(s.python.transformers if s.python else None)
    for event in events(s, "python.transformers-attribute"):
        name = event.values.get("name", "")
        if _REMOVED_IN_5.match(name):
            return say(
                cause,
                PROVEN,
                f"vLLM reads {name}, which transformers 5 no longer has",
                event,
                fixes=older_transformers(s),
            )
        if name == "aimv2":
            return say(
                cause, PROVEN, "this vLLM registers a configuration that transformers has of its own by now", event
            )
    for event in events(s, "python.transformers-attribute", "python.transformers-import"):
        name = event.values.get("name", "")
        if event.signal == "python.transformers-import" and _NEW_MODELS.search(name) and (installed or 4) < 5:
            continue
        if installed is not None and installed < 5:
            continue
        sure = LIKELY if installed else HINT
        return say(cause, sure, f"the installed transformers has no {name} any more", event)
    said = _pip_says(s, cause, "new")
    if said is None and installed is not None and installed >= 5 and (version := _vllm(s)):
        minor = re.match(r"0\.(\d{1,3})\b", version)
        if minor and int(minor[1]) < 12:
            text = f"vLLM {version} is older than transformers {installed}, which it does not expect"
            return say(cause, HINT, text, s.evidence("python.transformers"))
    return said


def _vllm(s: Snapshot) -> str | None:
    return (s.serving.vllm if s.serving else None) or (s.python.vllm if s.python else None)


def _pip_says(s: Snapshot, cause: str, side: str) -> Result:
    """pip named what vLLM asks of transformers and what is installed."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    for event in events(s, "python.conflict"):
        if event.values["what"] != "transformers":
            continue
        try:
            have, wanted = Version(event.values["have"].rstrip(".")), SpecifierSet(event.values["spec"])
        except (InvalidVersion, InvalidSpecifier):
            continue
        if wanted.contains(have, prereleases=True):
            continue
        below = all(
            have < Version(p.version.removesuffix(".*")) for p in wanted if p.operator in (">=", ">", "==", "~=")
        )
        lower = any(p.operator in (">=", ">", "==", "~=") for p in wanted)
        if (lower and below) == (side == "old"):
            return say(
                cause,
                LIKELY,
                f"{event.values['who']} asks for transformers{event.values['spec']}, {have} is installed",
                event,
            )
    return None


@rule("torch-abi-mismatch")
def torch_abi(s: Snapshot) -> Result:
    """The loader misses a C++ symbol of torch in a compiled module (proven for vLLM's own, likely for others)."""
    cause = "torch-abi-mismatch"
    for event in events(s, "python.undefined-symbol"):
        file, symbol = event.values.get("file", "").rsplit("/", 1)[-1], event.values["symbol"]
        torch = _TORCH_SYMBOL.match(symbol) is not None
        ours = "vllm" in event.values.get("file", "") or file.startswith("_C")
        if torch:
            text = f"{file or 'a compiled module'} was built against another torch: {symbol[:60]} is missing"
            return say(
                cause,
                PROVEN if ours else LIKELY,
                text,
                event,
                fixes=(*same_release(s), *catalogue.cause(cause).remedies[1:]),
            )
        if ours:
            return say(cause, LIKELY, f"{file} was built against other libraries: {symbol[:60]} is missing", event)
    for event in events(s, "python.conflict"):
        if event.values["who"] == "vllm" and event.values["what"] == "torch":
            text = (
                f"vLLM {event.values['version']} was built for torch{event.values['spec']}, "
                f"{event.values['have']} is installed"
            )
            return say(cause, LIKELY, text, event)
    op = next((e for e in events(s, "python.c-not-imported") if "op" in e.values), None)
    if op and not has(s, "host.glibc-symbol", "python.libcudart", "driver.libcuda-missing"):
        return say(cause, HINT, "vLLM's compiled module is not loaded, so its operators are missing", op)
    return None


@rule("vllm-torch-cuda-major-mismatch")
def cuda_majors(s: Snapshot) -> Result:
    """libcudart of one major is missing; proven where torch is known to be of the other major."""
    cause = "vllm-torch-cuda-major-mismatch"
    for event in events(s, "python.libcudart", "python.cuda-lib-missing"):
        major = event.values["major"]
        library = event.values.get("library", "libcudart")
        if event.signal == "python.cuda-lib-missing" and library not in ("libcublas", "libcublasLt", "libnvrtc"):
            continue
        torch = s.python.torch_cuda if s.python else None
        theirs = torch.split(".")[0] if torch else None
        text = f"{library}.so.{major} is missing: something installed is built for CUDA {major}"
        if theirs and theirs != major:
            text += f", torch is built for CUDA {torch}"
            return say(cause, LIKELY, text, event, s.evidence("python.torch_cuda"), fixes=same_release(s))
        return say(cause, HINT if theirs == major else LIKELY, text, event, fixes=same_release(s))
    return None


@rule("nccl-library-older-than-torch")
def nccl_old(s: Snapshot) -> Result:
    """torch misses a symbol of NCCL (proven)."""
    event = first(s, "python.nccl-symbol")
    if event is None:
        return None
    text = f"torch needs {event.values['symbol']}, which the NCCL library that was loaded does not have"
    return say("nccl-library-older-than-torch", PROVEN, text, event)


@rule("nccl-library-missing", start=False)
def nccl_missing(s: Snapshot) -> Result:
    """vLLM could not load libnccl.so.2 (likely what the trouble of several GPUs comes from)."""
    event = first(s, "python.nccl-not-loaded")
    if event is None:
        return None
    return say("nccl-library-missing", LIKELY, f"vLLM could not load {event.values['file']}", event)


@rule("kernels-too-new-for-transformers")
def kernels_new(s: Snapshot) -> Result:
    """The package kernels refused how transformers describes a kernel (proven)."""
    event = first(s, "python.kernels-revision")
    if event is None:
        return None
    text = "kernels (0.15 or newer) wants a revision of each kernel, which this transformers does not give"
    return say("kernels-too-new-for-transformers", PROVEN, text, event)


@rule("torchvision-does-not-fit-torch")
def torchvision(s: Snapshot) -> Result:
    """torchvision could not register its operators with this torch (proven)."""
    event = first(s, "python.torchvision")
    text = "the installed torchvision was built for another torch"
    return say("torchvision-does-not-fit-torch", PROVEN, text, event) if event else None


@rule("cuda-libraries-mixed")
def cuda_libraries(s: Snapshot) -> Result:
    """A CUDA library misses a symbol of another one: libraries of several releases are mixed (likely)."""
    event = first(s, "python.other-symbol")
    if event is None:
        return None
    text = (
        f"{event.values.get('file', '').rsplit('/', 1)[-1]} misses {event.values['symbol']}: CUDA "
        "libraries of different releases are mixed"
    )
    return say("cuda-libraries-mixed", LIKELY, text, event)


@rule("cpu-only-torch")
def cpu_torch(s: Snapshot) -> Result:
    """torch says it has no CUDA (likely), with an NVIDIA card in sight (proven)."""
    cause = "cpu-only-torch"
    event = first(s, "python.cpu-torch")
    if event is None and (built := first(s, "python.torch-no-cuda-release")):
        return say(cause, HINT, "the torch that builds extensions names no CUDA release", built)
    if event is None or first(s, "vllm.cpu-platform"):
        return None
    card = bool(s.gpus) or bool(s.driver and s.driver.version)
    rows = [s.evidence("gpus[0].name")] if s.gpus else [s.evidence("driver.version")] if card else []
    text = (
        f"torch {event.values['version']} is a CPU build"
        if "version" in event.values
        else "this torch is built without CUDA"
    )
    return say(cause, together(s, event, *rows) if card else LIKELY, text, event, *rows)


@rule("deepgemm-not-installed")
def deepgemm(s: Snapshot) -> Result:
    """A worker said that the DeepGEMM backend is not there (proven). Only sparse attention needs it."""
    event = first(s, "python.deepgemm-missing")
    if event is None:
        return None
    model = first(s, "python.sparse-model")
    text = "DeepGEMM was asked for, and this environment has none that fits"
    if model:
        text = f"{model.values['name']} needs DeepGEMM, and this environment has none that fits"
        return say("deepgemm-not-installed", PROVEN, text, event, model)
    off = Remedy("Set VLLM_USE_DEEP_GEMM=0: only models with sparse attention need it", True, risk=Risk.SAFE)
    fixes = (off, *catalogue.cause("deepgemm-not-installed").remedies)
    return say("deepgemm-not-installed", PROVEN, text, event, fixes=fixes)


@rule("pynvml-shim-installed", start=False)
def pynvml(s: Snapshot) -> Result:
    """torch's warning, or the package in a list (proven)."""
    event = first(s, "python.pynvml")
    return (
        say("pynvml-shim-installed", PROVEN, "the deprecated pynvml package is installed", event)
        if event
        else None
    )


@rule("vllm-doctor-name-clash", start=False)
def name_clash(s: Snapshot) -> Result:
    """A package list holds another project's vllm-doctor (a hint)."""
    event = first(s, "python.doctor-clash")
    return (
        say("vllm-doctor-name-clash", HINT, "another project's vllm-doctor is installed", event) if event else None
    )


@rule("vllm-not-installed")
def no_vllm(s: Snapshot) -> Result:
    """Python or the shell finds no vLLM (likely: in the environment that was active)."""
    event = first(s, "python.vllm-not-found")
    return say("vllm-not-installed", LIKELY, "the environment that was used has no vLLM", event) if event else None


@rule("numpy-too-new-for-extension")
def numpy_abi(s: Snapshot) -> Result:
    """numpy named a module that was compiled for its former major (proven)."""
    event = first(s, "python.numpy-abi")
    return (
        say(
            "numpy-too-new-for-extension",
            PROVEN,
            "a compiled module was built for NumPy 1, NumPy 2 is installed",
            event,
        )
        if event
        else None
    )


@rule("spawn-without-main-guard")
def main_guard(s: Snapshot) -> Result:
    """Python's multiprocessing said that the starting script starts itself again (proven)."""
    event = first(s, "python.main-guard")
    text = "the script that starts vLLM runs it again when a worker imports it"
    return say("spawn-without-main-guard", PROVEN, text, event) if event else None


@rule("serve-arguments-refused")
def arguments(s: Snapshot) -> Result:
    """vLLM's parser refused an option (proven)."""
    event = first(s, "serving.unknown-argument")
    if event is None:
        return None
    version = s.serving.vllm if s.serving else None
    text = f"this vLLM{f' ({version})' if version else ''} does not know {event.values['arguments'].strip()[:80]}"
    return say("serve-arguments-refused", PROVEN, text, event)


def explained(s: Snapshot, event: Event) -> Event | None:
    """A stronger import error near this one."""
    return near(
        s, event, {"host.glibc-symbol", "python.undefined-symbol", "python.libcudart"}, before=20, after=20
    )
