"""Package registries PyPI and npm: finds the address of a package's file as the user's pip or npm would."""

from __future__ import annotations

import ast
import http.client
import json
import os
import shutil
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from glassformer.core.errors import user_error
from glassformer.data.catalogue import open_address, public_address

PYPI = "https://pypi.org/simple"
NPM = "https://registry.npmjs.org"
NPM_HOST = "registry.npmjs.org"
MAX_PAGE_BYTES = 1 << 26
"""Largest page of a registry that is read: 64 MiB."""
TOOL_SECONDS = 30.0
"""Time limit for `pip config list` and `npm config get registry`."""
PAGE_TYPES = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True)
class Package:
    """File of a published package: a wheel of PyPI or an archive of npm."""

    registry: str
    """Name of the registry: a key of `REGISTRIES`."""
    name: str
    version: str
    file: str
    """Name of the package's file."""
    size: int
    sha256: str

    @property
    def command(self) -> str:
        """Command that downloads the file by hand."""
        return REGISTRIES[self.registry].command.format(name=self.name, version=self.version)


@dataclass(frozen=True)
class Registry:
    """Registry of packages: how to find a file in it, where, and how to download a file by hand."""

    find: Callable[[Package, str], str | None]
    """Function from a package and the URL of a registry to the URL of the package's file, if it is there."""
    addresses: Callable[[], list[str]]
    """Function that returns the URLs of the registries that the user has configured."""
    command: str


def find_address(package: Package, registry: str | None = None, *, option: str = "--package FILE") -> str:
    """Return the URL of a package's file: in `registry`, or in the registries of the user's configuration.

    `option` is the one that an error names for a file that the user downloads.
    """
    kind = REGISTRIES[package.registry]
    addresses = [registry] if registry else kind.addresses()
    causes = []
    for address in addresses:
        try:
            found = kind.find(package, address)
        except urllib.error.HTTPError as error:
            causes.append(f"{public_address(address)} replied {error.code} {error.reason}")
        except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            causes.append(f"{public_address(address)}: {reason or type(error).__name__}")
        else:
            if found:
                return found
            causes.append(f"{public_address(address)} does not have it")
    raise user_error(
        f"{package.file} was not found: {'; '.join(causes)}",
        path=f"{package.registry} package {package.name} {package.version}",
        hint=f"check the network, or download it elsewhere ({package.command}) and use {option}",
    )


def _read(address: str, accept: str) -> tuple[bytes, str]:
    """Return the content of a page and its type, such as `text/html`."""
    with open_address(address, {"Accept": accept}) as page:
        data = page.read(MAX_PAGE_BYTES + 1)
        kind = str(getattr(page, "headers", {}).get("Content-Type") or "")
    if len(data) > MAX_PAGE_BYTES:
        raise ValueError("the page is too large")
    return data, kind.partition(";")[0].strip().lower()


# ---------------------------------------------------------------- PyPI


class _Links(HTMLParser):
    """Parser of a page of links that collects their targets."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]


def _find_on_pypi(package: Package, address: str) -> str | None:
    """Find the file in an index of pip (PEP 503 and 691), or in a folder of `find-links`."""
    parts = urlsplit(address)
    is_local = parts.scheme in ("", "file")
    folder = Path(url2pathname(parts.path)) if parts.scheme else Path(address)
    if is_local and (folder / package.file).is_file():
        return (folder / package.file).absolute().as_uri()
    page = f"{address.rstrip('/')}/{package.name}/"
    if is_local:
        local = folder / package.name / "index.html"
        if not local.is_file():
            return None
        page = local.absolute().as_uri()
    data, kind = _read(page, PAGE_TYPES)
    if kind.endswith("+json"):
        targets = [str(file["url"]) for file in json.loads(data)["files"]]
    else:
        targets = _Links(data.decode("utf-8", "replace")).targets
    for target in targets:
        found = urljoin(page, target).partition("#")[0]
        if unquote(urlsplit(found).path).rpartition("/")[2] == package.file:
            return _with_login(found, address)
    return None


def _with_login(found: str, address: str) -> str:
    """Return a URL with the user name and the password of the registry, if both have the same host."""
    parts, own = urlsplit(found), urlsplit(address)
    if own.username is None or parts.hostname != own.hostname or parts.username is not None:
        return found
    return parts._replace(netloc=f"{own.netloc.rpartition('@')[0]}@{parts.netloc}").geturl()


def pip_addresses() -> list[str]:
    """Return the folders and indexes in which pip searches, in its order, or PyPI if none is configured."""
    options = _pip_options()
    links = options.get("find-links", "").split()
    index = options.get("index-url") or os.environ.get("UV_DEFAULT_INDEX") or PYPI
    if options.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return links
    return [*links, index, *options.get("extra-index-url", "").split()]


def _pip_options() -> dict[str, str]:
    """Return pip's options from its files and from the environment, which wins."""
    listed = dict(_config_lines(_output_of([sys.executable, "-m", "pip", "config", "list"])))
    names = ("index-url", "extra-index-url", "find-links", "no-index")
    found = {}
    for name in names:
        environment = os.environ.get(f"PIP_{name.replace('-', '_').upper()}")
        given = (listed.get(f"{section}.{name}") for section in (":env:", "download", "global"))
        value = environment or next((value for value in given if value), None)
        if value:
            found[name] = value
    return found


def _config_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line `name='value'`."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        try:
            yield name, str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue


# ---------------------------------------------------------------- npm


def _find_on_npm(package: Package, address: str) -> str | None:
    base = address.rstrip("/")
    data, _ = _read(f"{base}/{quote(package.name, safe='@')}/{package.version}", "application/json")
    found = str(json.loads(data)["dist"]["tarball"])
    parts, own = urlsplit(found), urlsplit(base)
    if parts.hostname == NPM_HOST != own.hostname:  # as npm does: a mirror serves the same path itself
        found = f"{base}{parts.path}"
    return _with_login(found, address)


def npm_addresses() -> list[str]:
    """Return the registry of npm's configuration, or the public one if none is configured."""
    tool = shutil.which("npm")  # it reads its files and the environment
    named = os.environ.get("NPM_CONFIG_REGISTRY", "")
    found = _output_of([tool, "config", "get", "registry"]).strip() if tool else named
    return [found if found.startswith(("http://", "https://")) else NPM]


def _output_of(command: Sequence[str]) -> str:
    """Return the standard output of a tool, or an empty string if it cannot be used."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout


REGISTRIES: Mapping[str, Registry] = {
    "PyPI": Registry(
        _find_on_pypi, pip_addresses, "pip download --no-deps --only-binary :all: {name}=={version}"
    ),
    "npm": Registry(_find_on_npm, npm_addresses, "npm pack {name}@{version}"),
}
"""Registries of packages by name."""
