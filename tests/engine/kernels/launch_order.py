"""Read from PTX whether a kernel waits for the one before it, and what it touches until then.

Registers are followed from the kernel's parameters to the addresses that are read, through what is
loaded on the way. What is in front of the wait must be straight code: a branch could go around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PLAIN, OPENS, WAITS = "plain", "opens", "waits"

_INSTRUCTION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z][\w.:]+)\s*(.*);")
_REGISTER = re.compile(r"%[a-z]+\d+")
_PARAMETER = re.compile(r"_param_(\d+)\]")
_WAIT, _ADMIT = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
_LEAVES = ("bra", "brx", "ret", "exit", "call")
_WRITES = ("st.", "atom.", "red.", "bar.")


def judge(ptx: str, signature: Mapping[str, str], early: set[str], *, overlaps: bool) -> str:
    """Say how a kernel goes with the one before it.

    Args: `signature`: the kernel's parameters and their types. `early`: the pointers that it may
        read through before the wait. `overlaps`: whether it is launched to begin early.
    Returns: `PLAIN`: it does nothing about it. `OPENS`: launched plainly, it lets the next kernel
        begin. `WAITS`: it begins early, and all is in order. Anything else says what is wrong.
    """
    matches = (_INSTRUCTION.match(line) for line in ptx.splitlines())
    instructions = [(found[1], found[2]) for found in matches if found]
    names = [name for name, _ in instructions]
    if not overlaps:
        return "waits-in-vain" if _WAIT in names else OPENS if _ADMIT in names else PLAIN
    if _WAIT not in names:
        return "never-waits"
    wait = names.index(_WAIT)
    if _ADMIT in names[:wait] or _ADMIT not in names:
        return "lets-the-next-begin-out-of-turn"
    pointers = [
        name if kind.startswith("*") else ""
        for name, kind in signature.items()
        if kind != "constexpr"
    ]
    sources: dict[str, set[str]] = {}
    for name, operands in instructions[:wait]:
        if name.startswith(_LEAVES + _WRITES):
            return f"{name}-before-the-wait"
        found = _PARAMETER.search(operands)
        # Behind the kernel's own parameters are Triton's.
        read = {[*pointers, "scratch", "scratch"][int(found[1])]} if found else set[str]()
        is_load = not found and name.startswith(("ld.", "cp."))
        # The address that is read is the last of them.
        for register in _REGISTER.findall(operands.rpartition("[")[2] if is_load else operands):
            read |= sources.get(register, set())
        if is_load and (others := read - early - {""}):
            return f"reads-{'-and-'.join(sorted(others))}-before-the-wait"
        for register in _REGISTER.findall(operands):
            sources.setdefault(register, set()).update(read)
    return WAITS
