"""Tests of the pure routing core: tables, conversations and properties, without network or clock."""
