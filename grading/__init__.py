"""Everything done with ledgers: manifest, store, advancing, intake, graders, publishing, command line."""
