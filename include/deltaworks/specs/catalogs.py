"""Specs of the catalogs in which tables are registered: AWS Glue, Unity Catalog, and a Hive metastore."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from deltaworks.specs.base import Name, SecretReference, Spec, TextOrReference
from deltaworks.specs.storage import AwsSpec


class _CatalogSettings(Spec):
    """Settings that all catalogs have."""

    name: Name
    pipelines: tuple[Name, ...] | None = Field(default=None, description="only these pipelines; by default all")
    drop: bool = Field(
        default=False,
        description="drop entries of tables that no longer exist; otherwise only `catalogs sync --drop` does",
    )

    def includes(self, pipeline: str) -> bool:
        """Returns whether the catalog has the tables of a pipeline."""
        return self.pipelines is None or pipeline in self.pipelines


class GlueCatalogSpec(_CatalogSettings, AwsSpec):
    """AWS Glue, which Athena, Trino, EMR and Redshift Spectrum read. Each pipeline is a database."""

    kind: Literal["glue"]
    catalog_id: str | None = Field(default=None, description="account of the catalog; by default that of the keys")
    database_prefix: str = Field(default="", pattern=r"^[a-z0-9_]*$", description="prefix of the database names")


class UnityCatalogSpec(_CatalogSettings):
    """A Unity Catalog server, by its REST API 2.1. Each pipeline is a schema."""

    kind: Literal["unity"]
    url: TextOrReference = Field(description="address of the server, before /api")
    catalog: str = Field(default="deltaworks", pattern=r"^[A-Za-z0-9_]+$", description="created if it does not exist")
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    timeout_seconds: float = Field(default=20.0, gt=0, le=120)

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: TextOrReference) -> TextOrReference:
        if isinstance(value, str) and not value.startswith(("http://", "https://")):
            raise ValueError("write the URL of the server, such as https://unity.example.com")
        return value


class HiveCatalogSpec(_CatalogSettings):
    """A Hive metastore, reached by a Spark session of its own. Each pipeline is a database."""

    kind: Literal["hive"]
    uri: TextOrReference | None = Field(
        default=None, description="thrift address; by default that of hive-site.xml on the class path"
    )
    conf: dict[str, str] = Field(default_factory=dict, description="further settings of the session")


CatalogSpec = Annotated[GlueCatalogSpec | UnityCatalogSpec | HiveCatalogSpec, Field(discriminator="kind")]
