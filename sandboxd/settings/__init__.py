"""Settings: one TOML file, variables and flags become one frozen object.

Knows nothing of the daemon that uses them.
"""

from sandboxd.settings.describe import SettingRow, describe_settings
from sandboxd.settings.load import load_settings
from sandboxd.settings.nouns import (
    ApiKey,
    BackendKind,
    BackendSettings,
    DockerOptions,
    LimitSettings,
    LocalOptions,
    LogSettings,
    ServerSettings,
    Settings,
    TemplateDoors,
    is_loopback,
)
from sandboxd.settings.places import default_state_dir
from sandboxd.settings.problems import Problem, SettingsError

__all__ = [
    "ApiKey",
    "BackendKind",
    "BackendSettings",
    "DockerOptions",
    "LimitSettings",
    "LocalOptions",
    "LogSettings",
    "Problem",
    "ServerSettings",
    "SettingRow",
    "Settings",
    "SettingsError",
    "TemplateDoors",
    "default_state_dir",
    "describe_settings",
    "is_loopback",
    "load_settings",
]
