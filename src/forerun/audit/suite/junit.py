"""The report of a suite as JUnit XML, which CI systems display."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from forerun.audit.report import AuditReport
from forerun.audit.suite.finding import SuiteVerdict

_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that an XML document cannot contain."""


def write_junit(report: AuditReport, file: Path) -> None:
    """Write one test case per check: passed, failed, or skipped without a verdict."""
    findings = [row["finding"] for row in report.rows]
    num_failed = findings.count(SuiteVerdict.FAIL.value)
    num_skipped = len(findings) - num_failed - findings.count(SuiteVerdict.PASS.value)
    suite = ET.Element(
        "testsuite",
        name="forerun audit suite",
        tests=str(len(findings)),
        failures=str(num_failed),
        skipped=str(num_skipped),
        errors="0",
        time=str(report.details["seconds"]),
        timestamp=report.as_json()["provenance"]["date"],
    )
    for row in report.rows:
        case = ET.SubElement(
            suite, "testcase", classname="forerun.audit.suite", name=row["name"], time=str(row["seconds"])
        )
        if row["finding"] == SuiteVerdict.FAIL.value:
            failure = ET.SubElement(case, "failure", message=row["reason"])
            failure.text = json.dumps(row["evidence"], indent=1, ensure_ascii=True)
        elif row["finding"] != SuiteVerdict.PASS.value:
            ET.SubElement(case, "skipped", message=f"{row['finding']}: {row['reason']}")
    for element in suite.iter():
        for key, value in element.attrib.items():
            element.set(key, _NOT_IN_XML.sub("?", value))
    tree = ET.ElementTree(suite)
    ET.indent(tree)
    tree.write(file, encoding="utf-8", xml_declaration=True)
