"""Reports against their published schemas (docs/*.schema.json).

wrong(report) lists what is wrong with it, in words; an empty list: nothing, or a report that has no schema.
"""

import functools
import json
import os

try:
    import jsonschema
except ImportError:
    jsonschema = None

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
SCHEMAS = {
    "gdnsim.report/1": "report.schema.json",
    "gdnsim.fit/1": "fit.schema.json",
    "gdnsim.pool/1": "pool.schema.json",
}
SCHEMAS.update(dict.fromkeys(("gdnsim.check/1", "gdnsim.check-mutations/1", "gdnsim.check-trace/1"), "check.schema.json"))
# Reports whose fields are told in the pages alone.
UNPUBLISHED = {f"gdnsim.{name}/1" for name in ("backends", "bench", "bisect", "contracts", "drift-report", "info", "merge", "pack",
                                                "recipe", "run", "split", "synth", "verify")}
MISSING = "python3-jsonschema is not installed"


@functools.lru_cache
def validator(name):
    with open(os.path.join(DOCS, name), encoding="utf-8") as stream:
        schema = json.load(stream)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def parse(text):
    """The JSON, which must be JSON and not Python's extension of it (NaN, Infinity)."""
    return json.loads(text, parse_constant=refuse_constant)


def wrong(report):
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema not in SCHEMAS:
        return [] if schema in UNPUBLISHED else [f"schema {schema!r} is none of ours"]
    if jsonschema is None:
        return [MISSING] if os.environ.get("GDNSIM_CI") == "1" else []
    name = SCHEMAS[schema]
    return [f"{error.json_path}: {error.message[:300]}" for error in validator(name).iter_errors(report)]


def checked(text, schema=None):
    """The report in a text; AssertionError when it is not what its schema says, or of another schema than was asked for."""
    report = parse(text)
    faults = wrong(report)
    assert schema is None or report["schema"] == schema, report["schema"]
    assert not faults, "\n".join(faults)
    return report
