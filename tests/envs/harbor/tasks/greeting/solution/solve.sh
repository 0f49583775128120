#!/bin/bash
set -eu
echo "hello from $(cat name.txt)" > greeting.txt
