"""A taskset of verifiers' own kind, whose set-up and reward use what a runtime offers: files read
whole and in part, commands, and what the agent has left.
"""

import verifiers.v1 as vf

SEED = bytes(range(101))


class DemoData(vf.TaskData):
    pass


class DemoTask(vf.Task[DemoData]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("/app/seed.bin", SEED)
        await runtime.write("rel.txt", b"relative\n")

    @vf.reward
    async def solved(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        written = await runtime.read("a.txt")
        seed = await runtime.read("/app/seed.bin", max_bytes=101)
        said = await runtime.run(["cat", "rel.txt"], {"X": "1"})
        assert (seed, said.exit_code, said.stdout) == (SEED, 0, "relative\n")
        return float(written == b"forty-two\n")


class DemoTaskset(vf.Taskset[DemoTask, vf.TasksetConfig]):
    def load(self) -> list[DemoTask]:
        return [
            DemoTask(DemoData(name=f"demo-{number}", prompt=f"Task {number}: write a.txt."))
            for number in range(64)
        ]


__all__ = ["DemoTaskset"]
