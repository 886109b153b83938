# Assertions of the guest's shell programs: `. /lib/check.sh`, then `that WHAT COMMAND…`, and `end` as the last line.
passed=0
failed=0

# One assertion: that the command succeeds. What it prints is shown where it does not.
that() {
    what=$1
    shift
    if seen=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "vm-guest: ok $what"
    else
        failed=$((failed + 1))
        echo "vm-guest: FAILED $what: $(echo "$seen" | tr '\n' ' ')"
    fi
}

# A count is only printed where everything holds.
end() {
    if [ "$failed" -gt 0 ]; then
        echo "vm-guest: $passed passed, $failed failed"
        exit 1
    fi
    echo "vm-guest: passed $passed"
}
