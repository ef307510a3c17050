// One mistake must not hide the next one, and must not cause others. A builtin that was called wrongly therefore
// returns a value on which nearly every operation succeeds, and every builtin that takes it stays silent. It is the
// technique of an error type in a compiler: the evaluation goes to the end of the plan, and each mistake of the author
// is reported once.
// There is one poison value a state, kept in the registry, so that recognizing it is a comparison of addresses.
#include "dsl/language/state/poison.h"

#include <string>

#include "dsl/language/state/guarded.h"

namespace moonshard {
namespace {

const char kKey = 0;  // its address is the registry key

int AnswerPoison(lua_State* L) { return PushPoison(L); }

// A call yields poison. As the iterator of a for loop, poison would repeat it forever, since the loop ends at nil: the
// first call gives every loop variable poison, so that one pass reports the mistakes of the body; the second call,
// whose control value is poison, gives nil.
int AnswerCall(lua_State* L) {
  lua_Debug record;
  const bool loops = lua_getstack(L, 0, &record) != 0 && lua_getinfo(L, "n", &record) != 0 &&
                     record.namewhat == std::string_view("for iterator");
  if (!loops) return PushPoison(L);
  constexpr int kMostLoopNames = 8;
  if (IsPoison(L, 3)) return 0;  // arguments: poison, the state, the control value
  for (int i = 0; i < kMostLoopNames; ++i) PushPoison(L);
  return kMostLoopNames;
}

int AnswerFalse(lua_State* L) {
  lua_pushboolean(L, 0);
  return 1;
}

int AnswerNothing(lua_State*) { return 0; }

int AnswerName(lua_State* L) {
  lua_pushlstring(L, kPoisonName.data(), kPoisonName.size());
  return 1;
}

// One userdata with a metamethod for every event. Comparisons give false instead of poison, because Lua converts their
// result to a boolean: `if heads > 8` takes the else branch. A write to a field is dropped. __name makes it
// recognizable in messages of Lua itself, which ScriptState then leaves out.
void MakePoison(lua_State* L) {
  lua_newuserdatauv(L, 0, 0);  // [poison]
  lua_createtable(L, 0, 28);   // [poison, meta]
  for (const char* event : {"__index", "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__unm", "__idiv",
                            "__band", "__bor", "__bxor", "__bnot", "__shl", "__shr", "__concat", "__len"}) {
    lua_pushcfunction(L, &Guarded<&AnswerPoison>);
    lua_setfield(L, -2, event);
  }
  lua_pushcfunction(L, &Guarded<&AnswerCall>);
  lua_setfield(L, -2, "__call");
  for (const char* event : {"__eq", "__lt", "__le"}) {
    lua_pushcfunction(L, &Guarded<&AnswerFalse>);
    lua_setfield(L, -2, event);
  }
  lua_pushcfunction(L, &Guarded<&AnswerNothing>);
  lua_setfield(L, -2, "__newindex");
  lua_pushcfunction(L, &Guarded<&AnswerName>);
  lua_setfield(L, -2, "__tostring");
  lua_pushlstring(L, kPoisonName.data(), kPoisonName.size());
  lua_setfield(L, -2, "__name");
  lua_setmetatable(L, -2);
}

}  // namespace

int PushPoison(lua_State* L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey) == LUA_TUSERDATA) return 1;
  lua_pop(L, 1);
  MakePoison(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kKey);
  return 1;
}

bool IsPoison(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TUSERDATA) return false;
  const void* value = lua_touserdata(L, index);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &kKey);
  const bool same = lua_touserdata(L, -1) == value;
  lua_pop(L, 1);
  return same;
}

bool AnyPoison(lua_State* L) {
  for (int i = 1, n = lua_gettop(L); i <= n; ++i) {
    if (IsPoison(L, i)) return true;
  }
  return false;
}

}  // namespace moonshard
