#!/bin/bash
set -eu
printf '#!/bin/bash\ntotal=0\nfor number in "$@"; do total=$((total %s number)); done\necho "$total"\n' "$SIGN" > total.sh
