"""Makes configs/serving_operations.json: the operations of each TensorFlow release and its tensorflow-text.

    python tests/golden/make_serving_operations.py

The script installs each release in an environment of its own (about 2 GB, removed afterwards) and lists its operations
and their attributes. The file contains all operations of the first release, and the additions and removals of each
later one. For a new release of TensorFlow Serving, add its packages to RELEASES and run this script again.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

PATH = pathlib.Path(__file__).parents[2] / "configs" / "serving_operations.json"

RELEASES = {
    "2.17": ("tensorflow==2.17.1", "tensorflow-text==2.17.0"),
    "2.18": ("tensorflow==2.18.1", "tensorflow-text==2.18.1"),
    "2.19": ("tensorflow==2.19.1", "tensorflow-text==2.19.0"),
    "2.20": ("tensorflow==2.20.0", "tensorflow-text==2.20.1"),
    "2.21": ("tensorflow==2.21.0", "tensorflow-text==2.21.1"),
}

LIST_OPERATIONS = """
import json
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
import tensorflow_text
def read():
    operations = op_def_pb2.OpList()
    operations.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {each.name: sorted(attribute.name for attribute in each.attr) for each in operations.op}
print(json.dumps(read()))
"""

OF_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")  # a server has no Python interpreter for these

Operations = dict[str, list[str]]


def list_operations(packages: tuple[str, ...]) -> Operations:
    """Returns the names of all operations of some packages, with the names of their attributes."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = os.path.join(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages], check=True)
        done = subprocess.run([python, "-c", LIST_OPERATIONS], check=True, capture_output=True, text=True)
        operations: Operations = json.loads(done.stdout)
        return {name: attributes for name, attributes in operations.items() if name not in OF_PYTHON}


def main() -> None:
    content: dict[str, dict[str, object]] = {}
    before: Operations = {}
    for release, packages in RELEASES.items():
        operations = list_operations(packages)
        added = {name: attributes for name, attributes in operations.items() if before.get(name) != attributes}
        removed = sorted(set(before) - set(operations))
        content[release] = {"packages": list(packages), "added": dict(sorted(added.items())), "removed": removed}
        before = operations
        print(f"{release}: {len(operations)} operations, {len(added)} new or changed, {len(removed)} removed")
    PATH.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
