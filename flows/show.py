"""What the command line shows of a preflight: a table for people, plain lines for pipes."""

from collections.abc import Sequence

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.backends.protocols import Planned
from tasks.preflight.findings import Finding


def show_findings(findings: Sequence[Finding], out: Console) -> None:
    """One row a finding; where it is not ok, with the fix."""
    if not out.is_terminal:
        for each in findings:
            out.print(_line(each), markup=False)
        return
    table = Table("", "check", "found", box=None, padding=(0, 1, 0, 0))
    for each in findings:
        mark = "[green]pass[/]" if each.ok else "[red]FAIL[/]"
        found = each.detail if each.ok else f"{each.detail}\n-> {each.fix}"
        table.add_row(mark, each.name, escape(found))
    out.print(table, soft_wrap=False)


def show_plan(planned: Sequence[Planned], out: Console) -> None:
    """One YAML stream: calls as comments, each above the object that it would send."""
    for number, each in enumerate(planned, 1):
        out.print(f"# {number}. {each.call}", markup=False)
        if each.manifest is not None:
            text = yaml.safe_dump(each.manifest, sort_keys=False, width=1000)
            out.print(f"---\n{text}", markup=False, end="")


def _line(finding: Finding) -> str:
    if finding.ok:
        return f"pass  {finding.name}: {finding.detail}"
    return f"FAIL  {finding.name}: {finding.detail} -> {finding.fix}"
