"""CronJobs of the vault run under the only account with access to the vault."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.kubernetes.conftest import ENVIRONMENT, PIPELINE, Rendered

VAULT = """\
privacy:
  keys: {kind: kms, key_id: alias/privacy}
  vault: {root: "s3://vault", access_key: env:VAULT_ACCESS_KEY, secret_key: env:VAULT_SECRET_KEY}
"""
PRIVATE = """\
privacy:
  namespace: shop_customers
  fields: [{path: email, action: vault, as: email}]
"""


def with_vault(render: Callable[..., Rendered]) -> Rendered:
    environment = ENVIRONMENT.replace(
        "service_account_annotations: {role: deltaworks}",
        "service_account_annotations: {role: deltaworks}\n  vault_account_annotations: {role: vault}",
    )
    return render(environment=environment + VAULT, pipeline=PIPELINE.replace("tables:\n", PRIVATE + "tables:\n", 1))


def test_vault_jobs_have_an_exclusive_service_account(render: Callable[..., Rendered]) -> None:
    objects = with_vault(render).objects
    jobs = {name: item for (kind, name), item in objects.items() if kind == "CronJob"}

    assert set(jobs) == {f"vault-{verb}-shop-customers" for verb in ("ingest", "maintain", "erase")}
    for job in jobs.values():
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert (pod["serviceAccountName"], pod["restartPolicy"]) == ("deltaworks-vault", "Never")
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        (container,) = pod["containers"]
        assert container["args"][-3:] == ["--namespace", "shop_customers", '--options={"dry_run":false}']
        assert {"VAULT_ACCESS_KEY", "VAULT_SECRET_KEY"} <= {variable["name"] for variable in container["env"]}
    account = objects["ServiceAccount", "deltaworks-vault"]
    assert account["metadata"]["annotations"] == {"role": "vault"}
    assert objects["ServiceAccount", "deltaworks"]["metadata"]["annotations"] == {"role": "deltaworks"}
    others = [item for (kind, _), item in objects.items() if kind in ("Deployment", "StatefulSet")]
    assert all(item["spec"]["template"]["spec"]["serviceAccountName"] != "deltaworks-vault" for item in others)


def test_without_a_vault_there_is_neither_a_job_nor_its_account(render: Callable[..., Rendered]) -> None:
    objects = render().objects

    assert not [name for kind, name in objects if kind == "CronJob" or name == "deltaworks-vault"]
