"""Many rows of a table by their unique key: one statement with one parameter to read them, one to write them.

On PostgreSQL the parameter is a JSON text that the server takes apart, so that neither Django nor the driver touches
single values; each key is looked up by the unique index, whatever the table's size. Values of JSON columns come and go
as Python objects. Dates among the values are written, not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from django.db import connection, models

ROWS_MAX = 5_000
"""Of one statement: a few megabytes of JSON."""

Key = tuple[Any, ...]
Row = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class RowSet:
    """Rows of `model` by the fields of a unique constraint."""

    model: type[models.Model]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    """What is read and what an upsert overwrites."""
    also_inserted: Mapping[str, Any] = field(default_factory=dict)
    """What a row begins with beside these, where the table has no default of its own; left alone in rows there are."""

    def read(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """The rows that exist, by key."""
        found = {}
        for part in _parts(keys):
            with connection.cursor() as cursor:
                cursor.execute(self._select, [_text(_stored_keys(part))])
                for place, *values in cursor.fetchall():
                    found[part[place]] = self._row(values)
        return found

    def _row(self, values: list[Any]) -> Row:
        for index in self._json_values:
            if values[index] is not None:
                values[index] = _decode(values[index])
        return dict(zip(self.values, values, strict=True))

    def upsert(self, rows: Sequence[tuple[Key, Mapping[str, Any]]]) -> None:
        """Writes each row whole: a value that is missing gets the field's default. No key may come twice."""
        for part in _parts(rows):
            with connection.cursor() as cursor:
                if connection.vendor == "postgresql":
                    records = [self._record(key, row) for key, row in part]
                    cursor.execute(self._insert_records, [_text(records)])
                else:
                    cursor.executemany(self._insert, [self._native(self._record(key, row)) for key, row in part])

    def _record(self, key: Key, row: Mapping[str, Any]) -> Row:
        """Column → value."""
        return {**self._begun, **row, **dict(zip(self._key_columns, key, strict=True))}

    def _native(self, record: Row) -> list[Any]:
        values = [_stored(record[column]) for column in self._written]
        for index in self._json_written:
            if values[index] is not None:
                values[index] = _text(values[index])
        return values

    # The statements: made of the model's own names alone, once for each set.

    @cached_property
    def _begun(self) -> Row:
        """What a row has where it is not told otherwise. Its fields are named like their columns."""
        return {name: self._field(name).get_default() for name in self.values} | dict(self.also_inserted)

    @cached_property
    def _key_columns(self) -> list[str]:
        return [self._column(name) for name in self.keys]

    @cached_property
    def _written(self) -> list[str]:
        return [self._column(name) for name in (*self.keys, *self.values, *self.also_inserted)]

    @cached_property
    def _json_values(self) -> list[int]:
        return [index for index, name in enumerate(self.values) if self._is_json(name)]

    @cached_property
    def _json_written(self) -> list[int]:
        names = (*self.keys, *self.values, *self.also_inserted)
        return [index for index, name in enumerate(names) if self._is_json(name)]

    @cached_property
    def _select(self) -> str:
        columns = ", ".join(f't."{self._field(name).column}"' for name in self.values)
        table = f'"{self.model._meta.db_table}"'
        if connection.vendor == "postgresql":
            # OFFSET keeps the planner from joining by a scan of the table when it thinks it small.
            same = " AND ".join(
                f'r."{self._field(name).column}" = (k.value ->> {index})::{self._type(name)}'
                for index, name in enumerate(self.keys)
            )
            return (
                f"SELECT (k.place - 1)::integer, {columns}"  # noqa: S608  (the model's own names)
                f" FROM json_array_elements(%s::json) WITH ORDINALITY AS k(value, place)"
                f" CROSS JOIN LATERAL (SELECT * FROM {table} r WHERE {same} OFFSET 0) t"
            )
        same = " AND ".join(
            f"t.\"{self._field(name).column}\" = json_extract(k.value, '$[{index}]')"
            for index, name in enumerate(self.keys)
        )
        return f"SELECT k.key, {columns} FROM json_each(%s) AS k CROSS JOIN {table} AS t ON {same}"  # noqa: S608  (the model's own names)

    @cached_property
    def _insert_records(self) -> str:
        names = (*self.keys, *self.values, *self.also_inserted)
        typed = ", ".join(f'"{self._field(name).column}" {self._type(name)}' for name in names)
        return self._upsert_of(f"SELECT * FROM json_to_recordset(%s::json) AS r({typed})")  # noqa: S608  (the model's own names)

    @cached_property
    def _insert(self) -> str:
        return self._upsert_of(f"VALUES ({', '.join(['%s'] * len(self._written))})")

    def _upsert_of(self, source: str) -> str:
        columns = ", ".join(f'"{column}"' for column in self._written)
        unique = ", ".join(f'"{self._field(name).column}"' for name in self.keys)
        kept = ", ".join(f'"{column}" = EXCLUDED."{column}"' for column in map(self._column, self.values))
        table = f'"{self.model._meta.db_table}"'
        return f"INSERT INTO {table} ({columns}) {source} ON CONFLICT ({unique}) DO UPDATE SET {kept}"

    def _column(self, name: str) -> str:
        return str(self._field(name).column)

    def _field(self, name: str) -> Any:  # Any: a concrete field, of which Django's stubs know no common type
        return self.model._meta.get_field(name)

    def _type(self, name: str) -> str:
        return str(self._field(name).db_type(connection))

    def _is_json(self, name: str) -> bool:
        return isinstance(self._field(name), models.JSONField)


def _parts[T](items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), ROWS_MAX):
        yield items[start : start + ROWS_MAX]


def _text(value: object) -> str:
    return _encode(value).decode()


def _stored_keys(keys: Sequence[Key]) -> Sequence[Sequence[Any]]:
    if connection.vendor == "postgresql":
        return keys
    return [[_stored(value) for value in key] for key in keys]


def _stored(value: Any) -> Any:
    """As the database keeps it: SQLite has dates as text, in UTC."""
    if isinstance(value, datetime) and connection.vendor != "postgresql":
        return connection.ops.adapt_datetimefield_value(value)
    return value
