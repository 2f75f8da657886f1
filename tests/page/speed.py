"""What the pages of 10,000 requests cost the server: its processor time, and the time until the whole page is there; medians of 20 pages.
usage: speed.py RESPOOL      (a release build; docs/performance.md has the result)"""
import http.client
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

work = pathlib.Path(tempfile.mkdtemp())
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
(work / "respool.toml").write_text(
    f'listen = "127.0.0.1:{port}"\nstate_dir = "{work}/state"\n[[upstream]]\nname = "box"\nurl = "http://127.0.0.1:1"\n')
server = subprocess.Popen([sys.argv[1], "serve", "--config", work / "respool.toml"], env={"PATH": os.environ["PATH"], "HOME": str(work)},
                          stderr=subprocess.DEVNULL)


def page(path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def processor_time():
    """Of all threads of the server, in nanoseconds."""
    tasks = pathlib.Path(f"/proc/{server.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


try:
    for _ in range(600):
        try:
            page("/")
            break
        except OSError:
            time.sleep(0.1)
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("fill.py"), work / "state/usage.db"], check=True)
    for path in ("/ui/requests", "/ui/requests?order=longest", "/ui/requests?text=timeout", "/ui/usage"):
        spent, took = [], []
        for number in range(22):
            before, begun = processor_time(), time.perf_counter()
            body = page(path)
            after = (processor_time() - before, time.perf_counter() - begun)
            assert b"<tr" in body, body
            if number >= 2:
                spent.append(after[0] / 1e6)
                took.append(after[1] * 1e3)
        print(f"{path}: {statistics.median(spent):.1f} ms of processor time ({min(spent):.1f} to {max(spent):.1f}), "
              f"{statistics.median(took):.1f} ms until the last byte ({min(took):.1f} to {max(took):.1f})")
finally:
    server.terminate()
    server.wait(60)
