"""Serves an exported model and asks it: `python examples/serve.py exports/example "a text" "another"`."""

import json
import subprocess
import sys
import urllib.request

folder, *texts = sys.argv[1:]
# Port 0 takes a free one; leave the flag out for 8501, which is TensorFlow Serving's.
command = ["official-bert", "serve", f"--model=example={folder}", "--port=0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    # The server's log has a JSON object on each line. The event "ready" contains the address.
    ready = json.loads(next(line for line in server.stderr if '"event":"ready"' in line))
    request = urllib.request.Request(
        f"{ready['url']}/v1/models/example:predict",
        json.dumps({"instances": texts}).encode(),
        {"Content-Type": "application/json"},
    )
    for text, answer in zip(texts, json.load(urllib.request.urlopen(request))["predictions"], strict=True):
        print(f"{text!r}: {answer['label']} ({answer['probability']:.2f})")
finally:
    server.terminate()  # SIGTERM: it answers what has arrived, then ends
    server.wait()
