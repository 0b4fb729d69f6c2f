"""Installs packages, in a sandbox that runs nothing else, for the server to take.

Arguments: pip or npm, then what is asked for. What the package manager asks of its
registry goes to the server, which asks it; nothing that a package brings is run.
The structured result says what was installed, or why not.
"""
import base64
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import workbench

PORT = 8642
HERE = "http://127.0.0.1:%d" % PORT
SET = "/mnt/files/set"


class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        try:
            answer = workbench.fetch(self.path)
        except workbench.WorkbenchError as e:
            self.answer(502, {}, ("%s: %s" % (e.code, e)).encode())
            return
        self.answer(answer.status, answer.headers, answer.content)

    def answer(self, status, headers, body):
        self.send_response(status)
        for name in ("content-type", "etag", "last-modified"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def tell_registry(url):
    """Says what the package manager's own registry is: the server may have another."""
    workbench.fetch("/registry", headers={"base": url})


def run(command):
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/builder", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
           "PIP_CONFIG_FILE": os.devnull, "NPM_CONFIG_USERCONFIG": os.devnull, "NPM_CONFIG_GLOBALCONFIG": "/nonexistent"}
    os.makedirs("/tmp/builder", exist_ok=True)
    done = subprocess.run(command, env=env, cwd="/tmp/builder", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def pip(specs):
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return {"missing": "pip"}
    tell_registry(PyPI.simple_url)
    report = "/tmp/report.json"
    code, said = run([sys.executable, "-m", "pip", "install", "--target", SET + "/python", "--only-binary", ":all:", "--index-url", HERE + "/simple/",
                      "--report", report, "--no-input", "--no-cache-dir", "--no-compile", "--no-warn-conflicts", "--disable-pip-version-check",
                      "--progress-bar", "off", "--retries", "1", "--root-user-action", "ignore", "--quiet", "--", *specs])
    if code:
        return {"said": said}
    with open(report) as f:
        installed = json.load(f)["install"]
    # The set is read-only where it is used, and its times are not kept.
    run([sys.executable, "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash", SET + "/python"])
    return {"lock": [{"name": p["metadata"]["name"], "version": p["metadata"]["version"],
                      "hash": "sha256-" + base64.b64encode(bytes.fromhex(p["download_info"]["archive_info"]["hashes"]["sha256"])).decode()}
                     for p in installed]}


def npm(specs):
    program = shutil.which("npm", path="/usr/local/bin:/usr/bin:/bin")
    if not program:
        return {"missing": "npm"}
    code, said = run([program, "config", "get", "registry"])
    if code:
        return {"said": said}
    tell_registry(said.strip())
    place = SET + "/node"
    os.makedirs(place)
    with open(place + "/package.json", "w") as f:
        json.dump({"private": True}, f)
    code, said = run([program, "install", "--prefix", place, "--registry", HERE + "/", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund",
                      "--no-update-notifier", "--replace-registry-host=never", "--cache", "/tmp/npm", "--maxsockets", "8", "--fetch-retries", "1",
                      "--loglevel", "error", "--", *specs])
    if code:
        return {"said": said}
    with open(place + "/package-lock.json") as f:
        found = json.load(f)["packages"]
    lock = [{"name": p.get("name") or path.rpartition("node_modules/")[2], "version": p["version"], "hash": p.get("integrity", "").split(" ")[0]}
            for path, p in found.items() if path and os.path.isdir(os.path.join(place, path))]
    for name in ("package.json", "package-lock.json", "node_modules/.package-lock.json"):
        if os.path.exists(os.path.join(place, name)):
            os.remove(os.path.join(place, name))
    return {"lock": lock}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


server = Server(("127.0.0.1", PORT), Relay)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.makedirs(SET)
outcome = {"pip": pip, "npm": npm}[sys.argv[1]](sys.argv[2:])
if "said" in outcome:
    outcome["said"] = outcome["said"][-8000:]
with open(SET + "/outcome.json", "w") as f:
    json.dump(outcome, f)
