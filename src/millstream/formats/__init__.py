"""Formats of record values: bytes to typed Arrow columns, and back.

    value_format.py   interface of a format; raw values
    declaration.py    choice of a format from a topic's configs and a reader's options
    ddl.py            Spark's DDL for schemas, to Arrow
    schema_json.py    Spark's JSON form of schemas, to Arrow
    typed_batch.py    adds typed columns to a batch of records and handles bad records
    dead_letters.py   bad records as records of another topic
    value_check.py    whether the values of a batch can be read, for topics that check them
    json/             JSON objects, with a schema in Spark's notation
    avro/             Avro records, with an Avro schema
    layout/           the tables and kernels that JSON and Avro share

Values become columns in two steps. A compiled loop reads all values of a batch and stores, for
each field, a number or a position in the bytes: `layout/slots.py`. Then each field becomes one
Arrow column: `layout/assembly.py`. No step runs Python code for each row.

Nothing here imports Spark.
"""
