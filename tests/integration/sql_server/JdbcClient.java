import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.util.Properties;

/** A BI tool in small: what DBeaver, Tableau and Metabase do by JDBC. Prints one line per answer: name, tab, value. */
public class JdbcClient {
    public static void main(String[] arguments) throws Exception {
        Properties login = new Properties();
        login.put("user", arguments[1]);
        login.put("password", arguments[2]);
        try (Connection connection = DriverManager.getConnection(arguments[0], login)) {
            describe(connection.getMetaData());
            select(connection);
            prepare(connection);
            fail(connection);
        }
        login.put("password", "wrong");
        try (Connection connection = DriverManager.getConnection(arguments[0], login)) {
            print("wrong password", "accepted");
        } catch (SQLException error) {
            print("wrong password", error.getMessage());
        }
    }

    private static void describe(DatabaseMetaData metadata) throws Exception {
        print("product", metadata.getDatabaseProductName());
        print("catalogs", rows(metadata.getCatalogs(), 1));
        print("schemas", rows(metadata.getSchemas(), 1));
        print("table types", rows(metadata.getTableTypes(), 1));
        print("tables", rows(metadata.getTables(null, "shop", "%", null), 2, 3, 4));
        print("views", rows(metadata.getTables("lake", null, "large%", new String[] {"VIEW"}), 2, 3, 4));
        print("columns", rows(metadata.getColumns("lake", "shop", "orders", null), 4, 5, 6, 7, 9));
        print("primary keys", rows(metadata.getPrimaryKeys("lake", "shop", "orders"), 4));
        print("imported keys", rows(metadata.getImportedKeys("lake", "shop", "orders"), 4));
        StringBuilder failures = new StringBuilder();
        for (Method method : DatabaseMetaData.class.getMethods()) {
            Class<?> type = method.getReturnType();
            if (method.getParameterCount() == 0 && (type.isPrimitive() || type == String.class)) {
                try {
                    method.invoke(metadata);
                } catch (java.lang.reflect.InvocationTargetException error) {
                    failures.append(method.getName()).append(": ").append(error.getCause()).append("; ");
                }
            }
        }
        print("failing properties", failures.toString());
    }

    private static void select(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            print("rows", rows(statement.executeQuery("SELECT id, amount, shop, sold_at FROM shop.orders WHERE id < 3 ORDER BY id"), 1, 2, 3));
            ResultSet result = statement.executeQuery("SELECT * FROM lake.shop.large_orders LIMIT 1");
            ResultSetMetaData columns = result.getMetaData();
            StringBuilder names = new StringBuilder();
            for (int index = 1; index <= columns.getColumnCount(); index++) {
                names.append(columns.getColumnName(index)).append(' ').append(columns.getColumnTypeName(index)).append(", ");
            }
            print("result", names.toString());
            result.close();
            print("personal", rows(statement.executeQuery("SELECT person, page FROM people.visits"), 1, 2));
            print("quoted", rows(statement.executeQuery("SELECT count(*) FROM \"lake\".\"shop\".\"orders\""), 1));
        }
    }

    private static void prepare(Connection connection) throws Exception {
        String text = "SELECT id FROM shop.orders WHERE id > ? AND shop = ? AND amount < ? AND sold_at >= ? ORDER BY id";
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            for (long from : new long[] {90, 95}) {
                statement.setLong(1, from);
                statement.setString(2, "a");
                statement.setBigDecimal(3, new BigDecimal("98.00"));
                statement.setTimestamp(4, Timestamp.valueOf("2026-03-01 00:00:00"));
                print("prepared " + from, rows(statement.executeQuery(), 1));
            }
            print("parameters", String.valueOf(statement.getParameterMetaData().getParameterCount()));
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT id FROM shop.orders ORDER BY id LIMIT ?")) {
            statement.setInt(1, 2);
            print("limit", rows(statement.executeQuery(), 1));
        }
    }

    private static void fail(Connection connection) {
        for (String text : new String[] {"SELECT * FROM shop.order", "DROP TABLE shop.orders", "SELECT * FROM read_text('/etc/passwd')"}) {
            try (Statement statement = connection.createStatement()) {
                statement.executeQuery(text);
                print("failure", "none: " + text);
            } catch (SQLException error) {
                print("failure", error.getMessage());
            }
        }
    }

    private static String rows(ResultSet result, int... columns) throws SQLException {
        StringBuilder text = new StringBuilder();
        while (result.next()) {
            for (int column : columns) {
                text.append(result.getObject(column)).append(' ');
            }
            text.append("| ");
        }
        result.close();
        return text.toString();
    }

    private static void print(String name, String value) {
        System.out.println(name + "\t" + String.valueOf(value).replace('\n', ' '));
    }
}
