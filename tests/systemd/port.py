"""The port on which a process listens."""

import os
import sys

pid = sys.argv[1]
sockets = set()
for name in os.listdir(f"/proc/{pid}/fd"):
    try:
        target = os.readlink(f"/proc/{pid}/fd/{name}")
    except FileNotFoundError:
        continue
    if target.startswith("socket:["):
        sockets.add(target[8:-1])
for line in open(f"/proc/{pid}/net/tcp").read().splitlines()[1:]:
    fields = line.split()
    if fields[3] == "0A" and fields[9] in sockets:
        print(int(fields[1].split(":")[1], 16))
        sys.exit()
sys.exit(1)
