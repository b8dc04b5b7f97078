"""Names of tables in a query, found without Spark."""

from __future__ import annotations

import pytest

from millstream.spark.pipelines.definition.relations import relations

READ = {
    "one": ("SELECT * FROM orders", "orders"),
    "upper case": ("SELECT * FROM Orders", "orders"),
    "quoted": ("SELECT * FROM `Orders`", "orders"),
    "alias": ("SELECT o.x FROM orders AS o", "orders"),
    "joins": ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN c USING (x)", "a b c"),
    "commas": ("SELECT x, y FROM a, b AS z, c WHERE x IN (1, 2)", "a b c"),
    "comma after a join": ("SELECT * FROM a JOIN b ON f(a.x, 1) = b.x, c", "a b c"),
    "commas elsewhere": ("SELECT * FROM a GROUP BY b, c ORDER BY d, e", "a"),
    "column called as a word of SQL": ("SELECT * FROM a JOIN b ON a.offset = b.offset, c", "a b c"),
    "query inside": (
        "SELECT * FROM (SELECT * FROM a, b) t WHERE EXISTS (SELECT 1 FROM c)",
        "a b c",
    ),
    "tables in brackets": ("SELECT * FROM (a JOIN b ON a.x = b.x), c", "a b c"),
    "union": ("SELECT * FROM a UNION ALL SELECT * FROM b", "a b"),
    "catalog": ("SELECT * FROM shop.orders JOIN lake.shop.x ON true JOIN a ON true", "a"),
    "path": ("SELECT * FROM parquet.`/data/x`, a", "a"),
    "function": ("SELECT * FROM range(10), a, LATERAL explode(a.list)", "a"),
    "lateral view": ("SELECT * FROM a LATERAL VIEW explode(m) t AS k, v", "a"),
    "values": ("SELECT * FROM VALUES (1, 2) AS t(x, y), a", "a"),
    "extract": ("SELECT EXTRACT(YEAR FROM at), TRIM(BOTH 'x' FROM n) FROM a", "a"),
    "distinct from": ("SELECT * FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.x", "a b"),
    "text": ("SELECT 'it''s FROM nowhere', \"FROM b\" FROM a", "a"),
    "comments": ("SELECT 1 -- FROM b\n /* FROM c */ FROM a", "a"),
    "pipes": ("FROM a |> WHERE x > 1 |> EXTEND x AS y, z AS w |> JOIN b USING (x)", "a b"),
    "nothing": ("SELECT 1", ""),
    "half a query": ("SELECT * FROM (a", "a"),
    "closed too often": ("SELECT * FROM a))", "a"),
}


@pytest.mark.parametrize(("sql", "names"), READ.values(), ids=READ.keys())
def test_the_tables_of_a_query_are_found(sql: str, names: str):
    assert relations(sql).read == set(names.split())


@pytest.mark.parametrize(
    ("sql", "given", "read"),
    [
        ("WITH t AS (SELECT * FROM a) SELECT * FROM t JOIN b USING (x)", "t", "a b"),
        ("WITH t AS (SELECT 1), u (x, y) AS (SELECT * FROM t) SELECT * FROM u, a", "t u", "a"),
        ("WITH RECURSIVE t AS (SELECT * FROM t) SELECT * FROM t", "t", ""),
        ("SELECT * FROM (WITH T AS (SELECT * FROM a) SELECT * FROM t)", "t", "a"),
        ("SELECT cast(x AS (int)) FROM a", "", "a"),
    ],
)
def test_names_that_a_query_gives_itself_are_no_tables(sql: str, given: str, read: str):
    found = relations(sql)
    assert found.given == set(given.split())
    assert found.read == set(read.split())
