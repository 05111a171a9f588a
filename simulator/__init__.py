"""One trial of one agent: the world it acts on, the tools it acts through, and the ledger of what it did."""
