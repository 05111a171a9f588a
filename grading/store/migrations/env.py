"""Run by Alembic: migrates over the connection, and inside the transaction, that the store has opened."""

from alembic import context

from grading.store.migrating import VERSION_TABLE
from grading.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
