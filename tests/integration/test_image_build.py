"""The Dockerfile in the test builder: a container has what it copies and runs, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.containers.dockerfile import DockerfileError
from tests.integration.containers.image_build import Image, ImageBuilder, container_command
from tests.integration.containers.namespace_host import NamespaceHost, missing_rights, namespace_host
from tests.integration.containers.running import FETCHED, check_out

pytestmark = [
    pytest.mark.skipif(bool(missing_rights()), reason=f"containers cannot be run here: {missing_rights()}"),
]


@dataclass
class Workshop:
    """A checkout, and a host to build and run it on."""

    folder: Path
    host: NamespaceHost
    builds: int = 0

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    def without(self, file: str, text: str) -> None:
        """Removes a text from a file of the checkout."""
        path = self.checkout / file
        before = path.read_text()
        assert text in before
        path.write_text(before.replace(text, ""))

    def build(self, *, target: str = "") -> Image:
        self.builds += 1
        builder = ImageBuilder(self.host, self.folder / f"images-{self.builds}", fetched=FETCHED)
        return builder.build(self.checkout, target=target)

    def run(self, image: Image, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in a container of the image, without a network."""
        root = self.folder / f"root-{self.builds}"
        if not self.host.inside(root).exists():
            image.mount(self.host, root, upper=self.folder / f"upper-{self.builds}")
        command = container_command(self.host, image, root, list(words), self.host.inside(root) / "etc/passwd")
        return subprocess.run(command, env=dict(image.variables), capture_output=True, text=True, check=False)


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    check_out(tmp_path / "checkout")
    with namespace_host() as host:
        yield Workshop(tmp_path, host)


def test_an_image_has_what_is_copied_for_its_user_and_nothing_of_the_machine_or_the_secrets(workshop: Workshop) -> None:
    image = workshop.build()

    assert workshop.run(image, "id", "-u").stdout == "50000\n"
    assert workshop.run(image, "pwd").stdout == "/opt/airflow\n"
    listed = workshop.run(
        image, "find", "/opt/airflow", "/opt/deltaworks", "-maxdepth", "1", "-printf", "%p %U\n"
    ).stdout
    owners = dict(line.split() for line in listed.splitlines())
    assert {f"/opt/airflow/{name}" for name in ("auth", "dags", "include", "logs", "plugins", "spark_jobs")} < set(
        owners
    )
    assert {"/opt/deltaworks/init.sh", "/opt/deltaworks/spark.sh", "/opt/deltaworks/lake"} < set(owners)
    assert {owner for path, owner in owners.items() if not path.endswith("/venv")} == {"50000"}
    assert workshop.run(image, "find", "/", "-xdev", "-name", "*.env", "-path", "*secrets*").stdout == ""
    assert workshop.run(image, "ls", "/work", str(workshop.checkout)).stdout == ""
    loaded = "import deltaworks, psycopg2, asyncpg, sys; print(deltaworks.__file__, sys.prefix)"
    assert workshop.run(image, "python", "-c", loaded).stdout == (
        "/opt/airflow/include/deltaworks/__init__.py /opt/deltaworks/venv\n"
    )


def test_the_server_of_the_local_profile_starts_from_its_own_stage(workshop: Workshop) -> None:
    image = workshop.build(target="local")

    assert workshop.run(image, "python", "-m", "sandbox.servers.moto_server", "--help").returncode == 0
    assert workshop.run(image, "ls", "dags").returncode != 0


def test_what_is_not_copied_is_not_there(workshop: Workshop) -> None:
    workshop.without("Dockerfile", "docker/spark.sh ")
    workshop.without("Dockerfile", "COPY --chown=airflow:0 plugins /opt/airflow/plugins\n")

    image = workshop.build()

    assert workshop.run(image, "bash", "/opt/deltaworks/spark.sh", "master").returncode == 127
    assert workshop.run(image, "ls", "plugins").returncode != 0


@pytest.mark.parametrize(
    ("file", "text", "refusal"),
    [
        (".dockerignore", "!docker/init.sh\n", '"docker/init.sh": not found in the build context'),
        (
            "Dockerfile",
            "COPY --chown=airflow:0 requirements.lock /opt/deltaworks/locks/\n",
            "requirements.lock",
        ),
        ("Dockerfile", "        --require-hashes", "installs what no lock with hashes says"),
        ("Dockerfile", " include/jars/jars.lock", "jars.lock"),
    ],
)
def test_a_build_that_lacks_something_is_refused(workshop: Workshop, file: str, text: str, refusal: str) -> None:
    workshop.without(file, text)

    with pytest.raises(DockerfileError, match=refusal):
        workshop.build()


def test_a_run_has_no_more_rights_than_its_user(workshop: Workshop) -> None:
    (workshop.checkout / "Dockerfile").write_text("FROM python:3.11-slim-bookworm\nUSER 50000\nRUN mkdir /opt/folder\n")

    with pytest.raises(DockerfileError, match="Permission denied"):
        workshop.build()
