#!/usr/bin/env bash
# checks.sh NAME [ROOT]: one check of the project's shape over the tree at ROOT; prints what breaks it, status 1 then.
# checks.sh list: the names.
set -euo pipefail
export LC_ALL=C  # one order of names, and of the letters in [a-z], everywhere

names=(mirror torch_free lua_free light_headers no_swallowed_lua_errors one_driver headers_say_what built readme_map comments_name_what_exists columns comment_tables)
torch_free=(engine/core engine/layout engine/plan engine/io engine/graph dsl/language dsl/planning dsl/commands/cli dsl/commands/repl)

# tests/ mirrors engine/ and dsl/: every folder with sources has tests, every folder of tests has sources.
mirror() {
  Files '^(engine|dsl)/.*\.cc$' | xargs -rn1 dirname | sort -u | while read -r folder; do
    # A folder within a part (engine/runtime/mesh/nccl) may be tested with that part.
    compgen -G "tests/$folder/*_test.cc" >/dev/null || { [[ $folder == */*/* ]] &&
      compgen -G "tests/${folder%/*}/*_test.cc" >/dev/null; } || echo "$folder: no test in tests/$folder"
  done
  Files '^tests/(engine|dsl)/.*_test\.cc$' | xargs -rn1 dirname | sort -u | while read -r folder; do
    [[ -d ${folder#tests/} ]] || echo "$folder: there is no ${folder#tests/}"
  done
}

# Planning needs no LibTorch.
torch_free() {
  local folder
  for folder in "${torch_free[@]}"; do
    Grep '^#include [<"](torch|ATen|c10)/' "^(tests/)?$folder/"
  done
}

# Lua is known in dsl/ alone, and LibTorch's part of the engine never sees it.
lua_free() {
  Grep '^#include [<"](lua|lauxlib|lualib|moonshard_lua)' '^(engine|tests/engine|tests/support)/'
}

# torch/torch.h costs seconds for everyone who includes a header that includes it; the hookable layers need it.
light_headers() {
  Grep '^#include <torch/(torch|all)\.h>' '^(engine|dsl)/.*\.h$' | grep -vE '^(engine/(nn|models)|dsl/embed)/' || true
}

# catch (...) also catches Lua's own errors: who catches them must throw on.
no_swallowed_lua_errors() {
  Files '^dsl/.*\.(h|cc)$' | while read -r file; do
    awk -v file="$file" '
      /catch \(\.\.\.\)/ { opened = FNR }
      opened && /throw;/ { opened = 0 }
      opened && FNR > opened + 6 { print file ":" opened ": catch (...) without throw;"; opened = 0 }
      END { if (opened) print file ":" opened ": catch (...) without throw;" }' "$file"
  done
}

# From a plan to a compiled plan there is one way, ResolvePlan: else programs disagree about the findings of a plan.
one_driver() {
  Grep '\<(MatchRules|CompilePlan)\(' '^(engine|dsl|tests)/' |
    { grep -vE '^(tests/)?engine/plan/(match|compile|resolve)/' || true; }
}

# A header begins with what it is for.
headers_say_what() {
  Files '^(engine|dsl)/.*\.h$' | while read -r file; do
    [[ $(head -c 3 "$file") == '// ' ]] || echo "$file: does not begin with a comment that says what it is for"
    grep -q '^#pragma once' "$file" || echo "$file: #pragma once is missing"
  done
}

# A source that no CMakeLists.txt names, by itself or with its directory, is never built, and its tests never run.
built() {
  local lists
  # shellcheck disable=SC2016  # CMake's variable
  lists=$(Files '^(engine|dsl|tests)/.*CMakeLists\.txt$' | xargs -r cat | sed 's#${runtime}#engine/runtime#g')
  Files '^(engine|dsl)/.*\.cc$' | xargs -rn1 dirname | sort -u | while read -r folder; do
    local name=${folder##*/} parent=${folder%/*}
    grep -qE "moonshard_library\($name\>" "$parent/CMakeLists.txt" "$folder/CMakeLists.txt" 2>/dev/null ||
      grep -qF "$name/*.cc" <<<"$lists" || grep -qE "add_library\(" "$folder/CMakeLists.txt" 2>/dev/null ||
      echo "$folder: no CMakeLists.txt makes a library of it"
  done
  Files '^tests/.*\.cc$' | while read -r file; do
    local folder=${file%/*}
    folder=${folder#tests/}
    grep -qE "[ (]$folder\>" <<<"$lists" ||
      grep -qE "(^|[^A-Za-z0-9_])${file##*/}" <<<"$lists" || echo "$file: no CMakeLists.txt names it or its directory"
  done
}

# The directories that engine/README.md shows exist, and layers and libraries that exist are shown.
readme_map() {
  local shown folder
  shown=$(awk '/^```text$/ { on = 1; next } /^```$/ { on = 0 } on' engine/README.md)
  grep -oE '(^|[ ])[a-z_]+/' <<<"$shown" | tr -d ' ' | sort -u | while read -r folder; do
    [[ -d $folder ]] || compgen -G "*/$folder" >/dev/null || compgen -G "*/*/$folder" >/dev/null ||
      echo "engine/README.md: no directory $folder"
  done
  Files '^(engine|dsl)/[a-z_]+/|^[a-z]+/' | awk -F/ '{ print $1 } /^(engine|dsl)\// && NF > 2 { print $2 } /^(engine|dsl)\// && NF > 3 && $2 != "models" && $3 != "pages" { print $3 }' |
    sort -u | while read -r folder; do
      grep -qE "(^|[ /])$folder(/|\>)" <<<"$shown" || echo "engine/README.md: does not show $folder/"
    done
}

# A file or constant that a comment names exists: else the comment is about code that is gone. Headers of libraries are named
# with their directory.
comments_name_what_exists() {
  local sources headers
  sources=$(Files '^(engine|dsl|tests)/.*\.(h|cc)$')
  [[ -n $sources ]] || return 0
  headers=$(Files '\.h$' | sed 's#.*/##' | tr '\n' ' ')
  # shellcheck disable=SC2086  # one word a file
  awk -v headers="$headers" '
    BEGIN { split(headers, names, " "); for (i in names) known[names[i]] = 1 }
    {
      at = match($0, /(^|[^:"])\/\//)
      code = at ? substr($0, 1, RSTART) : $0
      while (match(code, /(^|[^A-Za-z0-9_])k[A-Z][A-Za-z0-9]+/)) {
        name = substr(code, RSTART, RLENGTH)
        sub(/^[^k]/, "", name)
        known[name] = 1
        code = substr(code, RSTART + RLENGTH)
      }
      if (!at || FILENAME ~ /^tests\//) next
      text = substr($0, at)
      while (match(text, /[A-Za-z0-9_.\/]*[A-Za-z0-9_]\.h([^A-Za-z0-9_]|$)|(^|[^A-Za-z0-9_])k[A-Z][A-Za-z0-9]+/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        sub(/^[^A-Za-z0-9_.\/]/, "", name)
        sub(/[^A-Za-z0-9_]$/, "", name)
        if (name ~ /\.h$/ && name ~ /^(torch|ATen|c10|c10d)\//) continue
        sub(/.*\//, "", name)
        named[FILENAME ":" FNR ": " name] = name
      }
    }
    END { for (place in named) if (!(named[place] in known)) print place " does not exist" }' $sources | sort
}

# No line is longer than 120 columns: clang-format leaves comments alone. Raw texts have lines of their own.
columns() {
  Files '^(engine|dsl)/.*\.(h|cc)$' | while read -r file; do
    awk -v file="$file" '
      { text = $0; gsub(/[\200-\277]/, "", text) }
      length(text) > 120 && !/R"\(/ { print file ":" FNR ": longer than 120 columns" }' "$file"
  done
}

# A line of a table in a comment that was broken begins at the margin, between lines that are indented further than any key.
comment_tables() {
  Files '^(engine|dsl)/.*\.(h|cc)$' | while read -r file; do
    awk -v file="$file" '
      {
        pad = match($0, /^ *\/\/ +[^ ]/) ? RLENGTH - index($0, "//") - 2 : 0
        if (broken && pad > 11) print file ":" FNR - 1 ": a line of a table that was broken"
        broken = table && pad == 1
        table = pad > 11 || (pad > 2 && substr($0, RLENGTH) ~ /   *[^ ]/)
      }' "$file"
  done
}

# Files PATTERN: the project's files whose path matches; those that git ignores are not the project's. Who runs this trusts
# the checkout, also where it belongs to somebody else, which git refuses unless told.
Files() {
  if [[ -d .git || -f .git ]]; then git -c safe.directory='*' ls-files -co --exclude-standard; else find . -path ./build -prune -o -type f -print | cut -c 3-; fi |
    { grep -E "$1" || true; } | sort | while read -r file; do [[ ! -e $file ]] || echo "$file"; done
}

# Grep PATTERN PATHS: the matching lines of the files whose path matches, as FILE:LINE:TEXT.
Grep() {
  Files "$2" | { grep -E '\.(h|cc)$' || true; } | xargs -r grep -nHE "$1" || true
}

Main() {
  local name=$1 found
  if [[ $name == list ]]; then printf '%s\n' "${names[@]}"; exit; fi
  cd "${2:-$(dirname "${BASH_SOURCE[0]}")/../..}"
  [[ -n $(Files .) ]] || { echo "there are no files in $PWD, or git does not list them"; exit 1; }
  found=$("$name")
  [[ -z $found ]] || { printf '%s\n' "$found"; exit 1; }
}

Main "$@"
