"""Facts read from pasted output: nvidia-smi, environment reports, shells, vLLM's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.evidence.facts_vllm import parse_arguments
from doctor.evidence.load import read_evidence
from doctor.snapshot import Snapshot

GIB = 1 << 30
MIB = 1 << 20


def facts(tmp_path: Path, *texts: str) -> Snapshot:
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"paste{number}.txt"
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    return read_evidence(paths).snapshot


TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.07             Driver Version: 572.83         CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GeForce RTX 3090        On  |   00000000:01:00.0  On |                  N/A |
| 30%   41C    P8             25W /  350W |    1203MiB /  24576MiB |      4%      Default |
|   1  NVIDIA GeForce RTX 208...      Off |   00000000:02:00.0 Off |                  N/A |
| 22%   30C    P8             10W /  250W |       1MiB /  22528MiB |      0%      Default |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|    0   N/A  N/A           51234      C   python3                                1100MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_table_of_nvidia_smi(tmp_path: Path) -> None:
    s = facts(tmp_path, TABLE.replace("570.133.07 ", "572.83     "))
    assert s.driver is not None
    assert (s.driver.version, s.driver.cuda) == ("572.83", "12.8")
    first, second = s.gpus or ()
    assert (first.name, first.compute_capability) == ("NVIDIA GeForce RTX 3090", "8.6")
    assert (first.total_bytes, first.used_bytes) == (24576 * MIB, 1203 * MIB)
    assert second.name is None, "a name that the table cut is not known"
    assert second.total_bytes == 22528 * MIB
    (process,) = [e for e in s.events if e.signal == "smi.process"]
    assert process.values == {"gpu": "0", "pid": "51234", "kind": "C", "name": "python3", "mib": "1100"}
    assert s.wsl is None


def test_two_builds_in_the_header_mean_another_driver_package_not_wsl(tmp_path: Path) -> None:
    """NVIDIA-SMI and driver of different releases: the library beside an older module, or the other way round."""
    s = facts(tmp_path, TABLE)
    assert s.driver is not None
    assert s.driver.version == "572.83"
    assert s.wsl is None


def test_table_under_wsl_names_two_builds_of_one_release(tmp_path: Path) -> None:
    s = facts(
        tmp_path, TABLE.replace("570.133.07", "580.95.02 ").replace("572.83", "581.15").replace("581", "580")
    )
    assert s.wsl is not None
    assert s.wsl.version == 2


def test_list_and_query_of_nvidia_smi(tmp_path: Path) -> None:
    s = facts(
        tmp_path,
        "$ nvidia-smi -L\nGPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-0b7e5a0c-1111-2222-3333-444455556666)\n",
    )
    assert s.gpus is not None
    assert (s.gpus[0].name, s.gpus[0].compute_capability) == ("NVIDIA GeForce RTX 4090", "8.9")
    query = """\
==============NVSMI LOG==============

Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Fabric
        State                             : In Progress
GPU 00000000:2A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
"""
    s = facts(tmp_path, query)
    assert s.driver is not None
    assert (s.driver.version, s.driver.cuda) == ("580.95.05", "13.0")
    assert [g.compute_capability for g in s.gpus or ()] == ["9.0", "9.0"]
    assert [e.values["state"] for e in s.events if e.signal == "smi.fabric-state"] == ["In Progress"]


REPORT = """\
Collecting environment information...
==============================
        System Info
==============================
OS                           : Ubuntu 24.04.3 LTS (x86_64)
GCC version                  : (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0
Libc version                 : glibc-2.39

==============================
       PyTorch Info
==============================
PyTorch version              : 2.11.0+cu130
Is debug build               : False
CUDA used to build PyTorch   : 13.0

==============================
      Python Environment
==============================
Python version               : 3.12.3 (main, Aug 14 2025, 17:47:21) [GCC 13.3.0] (64-bit runtime)
Python platform              : Linux-6.6.87.2-microsoft-standard-WSL2-x86_64-with-glibc2.39

==============================
       CUDA / GPU Info
==============================
Is CUDA available            : True
CUDA runtime version         : Could not collect
GPU models and configuration :
GPU 0: NVIDIA GeForce RTX 2080 Ti
GPU 1: NVIDIA GeForce RTX 3090

Nvidia driver version        : 581.15
[pip3] transformers==5.3.0
[pip3] triton==3.6.0
vLLM Version                 : 0.24.0
"""


def test_report_of_todays_vllm(tmp_path: Path) -> None:
    s = facts(tmp_path, REPORT)
    assert s.system
    assert s.python
    assert s.driver
    assert s.wsl
    assert (s.system.os_id, s.system.os_version, s.system.arch, s.system.glibc) == (
        "ubuntu",
        "24.04",
        "x86_64",
        "2.39",
    )
    assert (s.wsl.version, s.wsl.kernel) == (2, "6.6.87.2-microsoft-standard-WSL2")
    assert (s.python.version, s.python.torch, s.python.torch_cuda) == ("3.12.3", "2.11.0+cu130", "13.0")
    assert (s.python.vllm, s.python.transformers, s.python.triton) == ("0.24.0", "5.3.0", "3.6.0")
    assert s.driver.version == "581.15"
    assert [g.compute_capability for g in s.gpus or ()] == ["7.5", "8.6"]
    assert [e.values["value"] for e in s.events if e.signal == "report.cuda-available"] == ["True"]


def test_report_of_older_releases(tmp_path: Path) -> None:
    """One space after the colon, the first card on the line of its title."""
    s = facts(
        tmp_path,
        "PyTorch version: 2.5.1+cu124\nCUDA used to build PyTorch: 12.4\n"
        "OS: Debian GNU/Linux 12 (bookworm) (x86_64)\n"
        "Python platform: Linux-6.1.0-37-amd64-x86_64-with-glibc2.36\n"
        "GPU models and configuration: GPU 0: Tesla T4\nNvidia driver version: N/A\nvLLM Version: 0.6.6.post1\n",
    )
    assert s.system
    assert s.python
    assert s.wsl
    assert (s.system.os_id, s.system.kernel, s.wsl.version) == ("debian", "6.1.0-37-amd64", 0)
    assert (s.python.vllm, s.python.torch_cuda) == ("0.6.6.post1", "12.4")
    assert s.gpus
    assert s.gpus[0].compute_capability == "7.5"
    assert s.driver is None
    assert "report.no-driver-version" in {e.signal for e in s.events}


def test_shell_output(tmp_path: Path) -> None:
    s = facts(
        tmp_path,
        """\
$ uname -a
Linux box 5.15.167.4-microsoft-standard-WSL2 #1 SMP Tue Nov 5 00:21:55 UTC 2024 x86_64 GNU/Linux
$ cmd.exe /c ver
Microsoft Windows [Version 10.0.19042.1083]
$ dpkg -l | grep nvidia
ii  nvidia-driver-550  550.163.01-0ubuntu1  amd64  NVIDIA driver metapackage
rc  nvidia-driver-535  535.183.01-0ubuntu1  amd64  NVIDIA driver metapackage
$ ldconfig -p | grep libcuda
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
$ df -h /dev/shm
tmpfs            64M   12M   52M  19% /dev/shm
$ nvcc --version
Cuda compilation tools, release 12.4, V12.4.131
$ gcc --version
gcc (Debian 14.2.0-19) 14.2.0
$ pip list
torch                             2.9.0+cu128
flashinfer-python                 0.6.6
$ export VLLM_ATTENTION_BACKEND=FLASHINFER HF_TOKEN=hf_secretsecret
""",
    )
    assert s.wsl
    assert s.system
    assert s.python
    assert (s.wsl.version, s.wsl.windows_build) == (2, 19042)
    assert s.wsl.linux_driver_packages == ("nvidia-driver-550",), "what was removed (rc) is not there"
    assert s.wsl.libcuda_resolved == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert (s.system.shm_total_bytes, s.system.shm_free_bytes) == (64 * MIB, 52 * MIB)
    assert (s.python.torch, s.python.torch_cuda, s.python.flashinfer) == ("2.9.0+cu128", "12.8", "0.6.6")
    assert s.python.env == {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "HF_TOKEN": "(set)"}
    tools = {e.signal: e.values for e in s.events if e.signal in ("shell.nvcc", "shell.gcc")}
    assert tools["shell.nvcc"] == {"release": "12.4"}
    assert tools["shell.gcc"]["major"] == "14"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 08-14 12:00:00 [utils.py:253] non-default args: {'model': '/m/Qwen3.5-9B-AWQ', 'max_model_len': "
        "32768, 'gpu_memory_utilization': 0.95, 'enable_prefix_caching': True, "
        "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 2}}",
        "INFO 06-01 10:00:00 api_server.py:713] args: Namespace(host=None, port=8000, model='/m/Qwen3.5-9B-AWQ', "
        "max_model_len=32768, gpu_memory_utilization=0.95, enable_prefix_caching=True, "
        "speculative_config={'method': 'mtp', 'num_speculative_tokens': 2}, lora_modules=None)",
        "$ vllm serve /m/Qwen3.5-9B-AWQ --max-model-len 32768 --gpu-memory-utilization=0.95 "
        '--enable-prefix-caching --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
        "python -m vllm.entrypoints.openai.api_server --model /m/Qwen3.5-9B-AWQ --max-model-len 32768 "
        "--gpu-memory-utilization 0.95 --enable-prefix-caching "
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\' | tee log',
    ],
    ids=["non-default", "namespace", "serve", "module"],
)
def test_flags_in_every_form_vllm_and_shells_show(tmp_path: Path, line: str) -> None:
    serving = facts(tmp_path, line + "\n").serving
    assert serving is not None
    assert serving.model == "/m/Qwen3.5-9B-AWQ"
    assert serving.max_model_len == 32768
    assert serving.gpu_memory_utilization == 0.95
    assert serving.prefix_caching is True
    assert (serving.speculative_method, serving.speculative_tokens) == ("mtp", 2)
    assert serving.hybrid is True


def test_switched_off_flags_and_what_no_parser_reads() -> None:
    assert parse_arguments("Namespace(enforce_eager=False, served_model_name=['a', 'b'])") == {
        "enforce_eager": False,
        "served_model_name": ["a", "b"],
    }
    broken = "{'model': 'x', 'device': device(type='cuda'), 'max_num_seqs': 4, 'seed': 0"
    assert parse_arguments(broken)["max_num_seqs"] == 4
    assert parse_arguments("((((((") == {}


def test_figures_of_a_start(tmp_path: Path) -> None:
    serving = facts(
        tmp_path,
        "INFO 11-01 10:00:00 [core.py:93] Initializing a V1 LLM engine (v0.24.0) with config: "
        "model='/m/q', dtype=torch.float16, max_seq_len=8192, quantization=awq_marlin, enforce_eager=False\n"
        "INFO 11-01 10:00:05 [gpu_model_runner.py:4000] Model loading took 8.55 GiB memory and 12.1 seconds\n"
        "INFO 11-01 10:00:20 [gpu_worker.py:300] Available KV cache memory: 9.87 GiB\n"
        "INFO 11-01 10:00:20 [kv_cache_utils.py:1300] GPU KV cache size: 78,123 tokens\n"
        "INFO 11-01 10:00:20 [kv_cache_utils.py:1305] Maximum concurrency for 8,192 tokens per request: 9.53x\n"
        "INFO:     Application startup complete.\n",
    ).serving
    assert serving is not None
    assert (serving.vllm, serving.dtype, serving.quantization) == ("0.24.0", "float16", "awq_marlin")
    assert (serving.weights_gib, serving.available_kv_gib, serving.kv_tokens) == (8.55, 9.87, 78123)
    assert (serving.max_model_len, serving.concurrency, serving.started) == (8192, 9.53, True)


def test_two_texts_that_disagree_are_told(tmp_path: Path) -> None:
    s = facts(tmp_path, REPORT, TABLE)
    found = [e for e in s.events if e.signal == "contradiction"]
    assert [(e.values["fact"], e.values["first"], e.values["second"]) for e in found] == [
        ("driver.version", "581.15", "572.83")
    ]


def test_a_longer_spelling_is_no_contradiction(tmp_path: Path) -> None:
    s = facts(
        tmp_path, "[pip3] torch==2.11.0\n", "PyTorch version: 2.11.0+cu130\nCUDA used to build PyTorch: 13.0\n"
    )
    assert s.python is not None
    assert s.python.torch == "2.11.0+cu130"
    assert not [e for e in s.events if e.signal == "contradiction"]


def test_every_fact_names_the_line_it_was_read_from(tmp_path: Path) -> None:
    s = facts(tmp_path, REPORT)
    lines = REPORT.splitlines()
    for fact, text in (("driver.version", "Nvidia driver version"), ("python.torch", "PyTorch version")):
        number = next(n for n, line in enumerate(lines, 1) if line.startswith(text))
        assert s.evidence(fact).source.endswith(f"paste0.txt:{number}")


def test_of_a_long_line_what_stands_around_the_message_is_kept(tmp_path: Path) -> None:
    head = "docker: Error response from daemon: OCI runtime create failed: " + "container init caused: " * 12
    s = facts(
        tmp_path, head + "stderr: nvidia-container-cli: initialization error: driver error: failed: unknown.\n"
    )
    (event,) = [e for e in s.events if e.signal == "container.cli-driver-error"]
    assert event.text.startswith("...")
    assert event.text.endswith("nvidia-container-cli: initialization error: driver error: failed: unknown.")
