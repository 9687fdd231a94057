showClient();
drawAll();
