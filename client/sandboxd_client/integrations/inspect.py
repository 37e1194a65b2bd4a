"""Inspect's sandboxes as leases: the provider `sandboxd`.

`sandbox="sandboxd"` leases the template `python` for each sample, `sandbox=("sandboxd", "NAME")`
another one. The daemon is where SANDBOXD_API_URL says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from sandboxd_client import AsyncSandbox, AsyncSandboxd
from sandboxd_client.errors import (
    FileForbidden,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    NameTooLong,
    NotSupported,
    SandboxdError,
)
from sandboxd_client.results import ExecResult as Ended

_TEMPLATE = "python"
_CANNOT_EXECUTE = 126
_IS_KEPT = '[ -f "$1" ] && [ ! -w "$1" ]'


@sandboxenv(name="sandboxd")
class SandboxdEnvironment(SandboxEnvironment):
    """One leased sandbox of one sample."""

    def __init__(self, client: AsyncSandboxd, box: AsyncSandbox) -> None:
        super().__init__()
        self.client = client
        self.box = box

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Lease. Raises SandboxUnavailableError where none can be had."""
        client = AsyncSandboxd()
        try:
            with _told():
                labels = {"inspect.task": task_name[:256]}
                box = await client.lease(config or _TEMPLATE, labels=labels)
        except BaseException:
            await client.aclose()
            raise
        return {"default": cls(client, box)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Give back, whatever became of the sample; what fails here the lease's clocks mend."""
        for each in environments.values():
            environment = each.as_type(cls)
            with suppress(SandboxdError):
                await environment.box.release()
            await environment.client.aclose()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's own name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - Inspect's own, kept by the daemon
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command to its end. What timed out is dead, so nothing is tried again."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with _told():
            ended = await self.box.exec(
                cmd, stdin=input, cwd=cwd, env=env, user=user, timeout_s=timeout,
                output_limit_bytes=limit,
            )  # fmt: skip
        return _result(ended, cmd, limit=limit)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a whole file, with its parents; one that its user may not write to is left as it
        is, though it could be replaced.
        """
        with _told(file):
            kept = await self.box.exec(["sh", "-c", _IS_KEPT, "sh", file])
            if kept.ok:
                raise PermissionError(13, "Permission denied", file)
            await self.box.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a whole file, within Inspect's limit."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _told(file):
            data = await self.box.files.read(file, limit=limit + 1)
        if len(data) > limit:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
            )
        return data.decode() if text else data

    def default_polling_interval(self) -> float:
        """Asking costs milliseconds here."""
        return 0.2


def _result(ended: Ended, cmd: list[str], *, limit: int) -> ExecResult[str]:
    reason = ended.error.reason if ended.error is not None else None
    detail = ended.error.detail if ended.error is not None else ""
    if ended.outcome == "timeout":
        raise TimeoutError("the command met its deadline, and was killed")
    if reason in {"bad_user", "bad_cwd"}:
        return ExecResult(success=False, returncode=1, stdout="", stderr=f"{detail}\n")
    if ended.mask or ended.status is None:
        raise SandboxUnavailableError(f"the command's end is not its own: {ended.outcome} {detail}")
    denied = "permission denied" in ended.stderr.lower() or reason == "not_executable"
    if ended.status == _CANNOT_EXECUTE and denied:
        raise PermissionError(f"{cmd[0]}: permission denied {ended.stderr.strip()}".strip())
    if ended.stdout_truncated or ended.stderr_truncated:
        raise OutputLimitExceededError(
            limit_str=f"{limit / (1 << 20):g} MiB", truncated_output=ended.stdout
        )
    stderr = ended.stderr + (f"{detail}\n" if ended.outcome == "start_failed" else "")
    return ExecResult(
        success=ended.status == 0, returncode=ended.status, stdout=ended.stdout, stderr=stderr
    )


@contextmanager
def _told(file: str = "") -> Iterator[None]:
    """Our errors as those that Inspect tells apart; all else is a sandbox that is not there."""
    try:
        yield
    except (FileNotFound, FileNotDirectory, NameTooLong) as error:
        raise FileNotFoundError(2, "No such file or directory", file) from error
    except FileIsDirectory as error:
        raise IsADirectoryError(21, "Is a directory", file) from error
    except FileForbidden as error:
        raise PermissionError(13, "Permission denied", file) from error
    except NotSupported as error:  # of all that is asked here, another user alone may not be there
        raise SandboxUserUnsupportedError(str(error)) from error
    except SandboxdError as error:
        raise SandboxUnavailableError(str(error)) from error
