expected() { [ "$(cat "$1")" = "$2" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt; }
