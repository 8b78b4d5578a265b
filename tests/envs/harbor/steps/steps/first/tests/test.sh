#!/bin/sh
. /tests/expected.sh
expected /app/first.txt 1
