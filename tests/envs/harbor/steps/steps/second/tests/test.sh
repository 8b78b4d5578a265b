#!/bin/sh
. /tests/expected.sh
expected /app/second.txt 3
