"""Takes a picture of the server's page with Chromium: `python docs/figures/server_page.py exports/mine`."""

import json
import pathlib
import subprocess
import sys

PICTURE = pathlib.Path(__file__).with_suffix(".png")

command = ["official-bert", "serve", f"--model=mine={sys.argv[1]}", "--port=0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
    try:
        ready = json.loads(next(line for line in server.stderr or () if '"event":"ready"' in line))
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=3000"]
        subprocess.run([*browser, "--window-size=900,500", f"--screenshot={PICTURE}", ready["url"]], check=True)
    finally:
        server.terminate()
