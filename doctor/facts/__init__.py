"""Plain facts about a machine, one module a domain. ``None`` always means *not known*, never *no*.

Every facts class carries ``sources``: field name -> where it was read (a path, a command, an API, or
``file:line`` of the evidence it came from).
"""

from doctor.facts.container import ContainerFacts
from doctor.facts.driver import DriverFacts, KernelEvent
from doctor.facts.gpu import GpuFacts, GpuProcess
from doctor.facts.network import NetworkFacts
from doctor.facts.python_env import PythonFacts
from doctor.facts.serving import ServingFacts
from doctor.facts.storage import Mount, StorageFacts
from doctor.facts.system import SystemFacts
from doctor.facts.toolchain import Compiler, CompileTrial, Nvcc, Ptxas, ToolchainFacts
from doctor.facts.wsl import WslFacts

__all__ = [
    "CompileTrial",
    "Compiler",
    "ContainerFacts",
    "DriverFacts",
    "GpuFacts",
    "GpuProcess",
    "KernelEvent",
    "Mount",
    "NetworkFacts",
    "Nvcc",
    "Ptxas",
    "PythonFacts",
    "ServingFacts",
    "StorageFacts",
    "SystemFacts",
    "ToolchainFacts",
    "WslFacts",
]
