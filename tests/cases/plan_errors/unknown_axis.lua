return plan { divides(mesh.ttp, 8), divides(mesh.rank, 8), divides(mesh.dp, 8), at("x", on("tq", shard(0))) }
