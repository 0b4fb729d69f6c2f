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
            answer = ask(url=self.path)
        except workbench.WorkbenchError:
            self.send_error(502)
            return
        self.send_response(answer["status"])
        for name, value in answer.get("headers", {}).items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # Piece by piece: a file may be larger than the memory here, and who waits
        # for all of it gives up.
        try:
            self.piece(answer)
            while answer.get("more"):
                answer = ask(handle=answer["handle"])
                self.piece(answer)
            self.wfile.write(b"0\r\n\r\n")
        except (workbench.WorkbenchError, OSError):
            self.close_connection = True  # without the end, which says that it is none

    def piece(self, answer):
        content = base64.b64decode(answer["body"])
        if content:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def log_message(self, *args):
        pass


def ask(**request):
    return workbench._exchange(workbench._request(op="fetch", value=request))


def tell_registry(url):
    """Says what the package manager's own registry is: the server may have another."""
    ask(url="/registry", headers={"base": url})


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
    code, said = run([sys.executable, "-I", "-m", "pip", "install", "--target", SET + "/python", "--only-binary", ":all:", "--index-url", HERE + "/simple/",
                      "--report", report, "--no-input", "--no-cache-dir", "--no-compile", "--no-warn-conflicts", "--disable-pip-version-check",
                      "--progress-bar", "off", "--retries", "1", "--timeout", "60", "--root-user-action", "ignore", "--quiet", "--", *specs])
    if code:
        return {"said": said}
    with open(report) as f:
        installed = json.load(f)["install"]
    # The set is read-only where it is used, and its times are not kept.
    run([sys.executable, "-I", "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash", SET + "/python"])
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
                      "--no-update-notifier", "--replace-registry-host=never", "--cache", "/tmp/npm", "--maxsockets", "8", "--fetch-retries", "1", "--fetch-timeout", "60000",
                      "--loglevel", "error", "--", *specs])
    if code:
        return {"said": said}
    with open(place + "/package-lock.json") as f:
        found = json.load(f)["packages"]
    # What came inside of another package's file has no hash of its own.
    lock = [{"name": p.get("name") or path.rpartition("node_modules/")[2], "version": p.get("version", ""), "hash": p.get("integrity", "").split(" ")[0]}
            for path, p in found.items() if path and not p.get("inBundle") and os.path.isdir(os.path.join(place, path))]
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
