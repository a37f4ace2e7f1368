"""Loads from shards, and proofs that a shard loads."""
