#!/bin/sh
echo $(($(cat /app/first.txt) + $(cat /app/more.txt))) > /app/second.txt
