#!/bin/sh
printf "$FIRST$SECOND" > answer.txt
