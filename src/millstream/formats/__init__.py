"""What the values of a topic are: bytes to typed columns, and back.

    value_format.py   what every format can do; raw values
    declared.py       which format a topic, or an option, asks for
    applying.py       a batch of records, with its typed columns; what becomes of bad rows
    dead_letters.py   records that could not be read, as records of another topic
    json_*.py         JSON objects, by a Spark schema
    avro_*.py         Avro records, by an Avro schema

Values become columns in two steps. A compiled loop reads all values of a batch and notes, for each
field, a number or a place in the bytes: `slots.py`. Then each field is made an Arrow column at one
go: `assembly.py`. No step runs Python code for a row.
"""
