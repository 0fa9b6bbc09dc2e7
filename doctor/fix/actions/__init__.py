"""The actions by their kind, which is what a journal names."""

from __future__ import annotations

from doctor.fix.action import Action
from doctor.fix.actions.add_group_member import AddGroupMember
from doctor.fix.actions.docker_config import DockerConfig
from doctor.fix.actions.install_package import InstallPackage
from doctor.fix.actions.install_python import InstallPython
from doctor.fix.actions.launch_profile import LaunchProfile
from doctor.fix.actions.manual import Manual
from doctor.fix.actions.merge_ini import MergeIni
from doctor.fix.actions.merge_json import MergeJson
from doctor.fix.actions.merge_keyvalue import MergeKeyValue
from doctor.fix.actions.move_aside import MoveAside
from doctor.fix.actions.sysctl import Sysctl
from doctor.fix.actions.update_package_lists import UpdatePackageLists
from doctor.fix.actions.write_file import WriteFile

#: kind -> class. A kind is never removed or given another meaning: old journals name it.
KINDS: dict[str, type[Action]] = {
    action.kind: action
    for action in (
        WriteFile,
        MergeJson,
        MergeKeyValue,
        MergeIni,
        LaunchProfile,
        DockerConfig,
        InstallPackage,
        UpdatePackageLists,
        InstallPython,
        MoveAside,
        AddGroupMember,
        Sysctl,
        Manual,
    )
}
