#!/usr/bin/env bash
# Gives every check of checks.sh a tree that breaks it: a check that cannot fail is none.
set -euo pipefail
checks=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/checks.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
mkdir -p engine/plan/plan engine/gone dsl/language/eval tests/engine/lost
touch engine/plan/plan/lonely.cc
touch tests/engine/lost/lost_test.cc
printf '#include <torch/torch.h>\n#include <lua.hpp>\n' >engine/plan/plan/heavy.h
printf 'void F() {\n  try {\n  } catch (...) {\n  }\n}\n' >dsl/language/eval/swallow.cc
printf 'auto m = MatchRules(plan, tree);\n' >dsl/language/eval/shortcut.cc
printf '%s\n' '// Gone: as in gone.h, with kGone and kHere, of torch/torch.h.' 'int kHere;' >engine/plan/plan/comment.cc
printf '%s\n' '```text' 'engine/ nothing/' '```' >engine/README.md

printf '//   key        a text\n// that goes on\n//              here and ends\n// %0120d\n' 0 >engine/plan/plan/table.cc

Expect() {
  local output
  if output=$("$checks" "$1" "$tree"); then echo "$1: passed a tree that breaks it"; exit 1; fi
  grep -qF -- "$2" <<<"$output" || { printf '%s: expected "%s" in:\n%s\n' "$1" "$2" "$output"; exit 1; }
  expected+=("$1")
}

expected=()
Expect mirror 'engine/plan/plan: no test in tests/engine/plan/plan'
Expect mirror 'tests/engine/lost: there is no engine/lost'
Expect torch_free 'engine/plan/plan/heavy.h:1:#include <torch/torch.h>'
Expect lua_free 'engine/plan/plan/heavy.h:2:#include <lua.hpp>'
Expect light_headers 'engine/plan/plan/heavy.h:1'
Expect no_swallowed_lua_errors 'dsl/language/eval/swallow.cc:3: catch (...) without throw;'
Expect one_driver 'dsl/language/eval/shortcut.cc:1:auto m = MatchRules(plan, tree);'
Expect headers_say_what 'engine/plan/plan/heavy.h: does not begin with a comment'
Expect headers_say_what 'engine/plan/plan/heavy.h: #pragma once is missing'
Expect built 'tests/engine/lost/lost_test.cc: no CMakeLists.txt names it or its directory'
Expect built 'engine/plan/plan: no CMakeLists.txt makes a library of it'
Expect readme_map 'engine/README.md: no directory nothing/'
Expect readme_map 'engine/README.md: does not show dsl/'
Expect comments_name_what_exists 'engine/plan/plan/comment.cc:1: gone.h does not exist'
Expect comments_name_what_exists 'engine/plan/plan/comment.cc:1: kGone does not exist'
Expect columns 'engine/plan/plan/table.cc:4: longer than 120 columns'
Expect comment_tables 'engine/plan/plan/table.cc:2: a line of a table that was broken'
if grep -qE 'kHere|torch' <<<"$("$checks" comments_name_what_exists "$tree")"; then echo "what exists is reported"; exit 1; fi
diff <("$checks" list | sort) <(printf '%s\n' "${expected[@]}" | sort -u) || { echo "a check has no bad tree here"; exit 1; }
