"""Builds commits in one work tree, so that the second build of a pair compiles only what differs."""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .lab import KIT

REPOSITORY = KIT.parent.parent
PROFILE = "gate"
SETTINGS = {
    "inherits": '"dev"',
    "opt-level": "2",
    "debug": "false",
    "debug-assertions": "false",
    "overflow-checks": "false",
    "incremental": "true",
    'package."*".debug': "false",
    "package.tiktoken.opt-level": "2",
}
"""The profile of every build, whatever the commit's own profiles are: the gate judges code, not compiler settings."""


class CannotMeasure(Exception):
    """Why there is no result."""


@dataclass(frozen=True)
class Commit:
    id: str
    tree: str
    """The object of its files: two commits with equal files share a build."""

    @property
    def short(self):
        return self.id[:8]


def find_commit(name):
    return Commit(git("rev-parse", "--verify", f"{name}^{{commit}}"), git("rev-parse", "--verify", f"{name}^{{tree}}"))


def snapshot():
    """The files of the working tree as a commit that no branch has, with what is not committed yet; HEAD when that is all."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        git("read-tree", "HEAD", env=index)
        git("add", "--all", env=index)
        tree = git("write-tree", env=index)
    head = find_commit("HEAD")
    return head if tree == head.tree else Commit(git("commit-tree", tree, "-p", "HEAD", "-m", "Snapshot"), tree)


def build(commit, directory):
    """The program of a commit, built in DIRECTORY/tree unless DIRECTORY/bin has it already."""
    binary = directory / "bin" / commit.tree[:16]
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        check_out(commit, directory / "tree")
        compile_tree(directory)
        shutil.copy2(directory / "build" / PROFILE / "respool", binary)
    return binary


def check_out(commit, tree):
    if (tree / ".git").exists():
        git("checkout", "--quiet", "--force", "--detach", commit.id, cwd=tree)
    else:
        git("worktree", "prune")
        git("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit.id)


def compile_tree(directory):
    argv = ["cargo", "build", "--locked", "--bin", "respool", "--profile", PROFILE]
    for name, value in SETTINGS.items():
        argv += ["--config", f"profile.{PROFILE}.{name}={value}"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(directory / "build")}
    if subprocess.run(argv, cwd=directory / "tree", env=environment).returncode:
        raise CannotMeasure(f"{directory / 'tree'} does not build: see above")


def git(*arguments, cwd=REPOSITORY, env=None):
    result = subprocess.run(["git", *arguments], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if result.returncode:
        raise CannotMeasure(f"git {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout.strip()
